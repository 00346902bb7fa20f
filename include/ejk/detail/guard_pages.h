// SPDX-License-Identifier: Apache-2.0
// Memory between two zones that can be closed, so that running past its ends is noticed.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ejk/detail/export.h>
#include <ejk/invocation.h>

namespace EJK_EXPORT ejk {
namespace detail {

// The memory of one array of a trial, with a pattern before and behind it.
class GuardedBlock {
 public:
  static constexpr std::byte pattern{0xCB};

  // Where an address lies. `inside`: in the memory or its pattern.
  enum class Place { elsewhere, before, inside, behind };

  GuardedBlock() = default;
  virtual ~GuardedBlock() = default;
  GuardedBlock(const GuardedBlock&) = delete;
  GuardedBlock& operator=(const GuardedBlock&) = delete;

  // How many bytes behind the end (positive) or before the begin (negative) the farthest changed
  // byte of the pattern is; nullopt if it is whole.
  virtual std::optional<std::ptrdiff_t> overrun() const = 0;
  virtual void repair() const = 0;  // the pattern

  // These are of memory in this process; what lies on a device has none.
  virtual std::span<std::byte> here() const { return {}; }
  virtual void arm(bool /*read_only*/) const {}
  virtual Place place_of(const void* /*address*/) const { return Place::elsewhere; }
};

// Zeroed memory. Its end, rounded up to the alignment, touches the zone behind it; what lies
// between it and the two zones is filled with a pattern.
class GuardedMemory final : public GuardedBlock {
 public:
  static constexpr size_t alignment = 64;

  // `like`: memory of as many bytes, on whose kind of pages this should lie. Throws std::bad_alloc.
  explicit GuardedMemory(size_t bytes, const void* like = nullptr);
  ~GuardedMemory() override;

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }

  // Closes the two zones, and the memory itself to writers if `read_only`, for the rest of this
  // process. For a child: there is no way back.
  void arm(bool read_only) const override;

  std::optional<std::ptrdiff_t> overrun() const override;
  void repair() const override;
  std::span<std::byte> here() const override { return {data_, size_}; }
  Place place_of(const void* address) const override;

 private:
  std::byte *pages_ = nullptr, *data_ = nullptr;
  size_t all_ = 0, size_ = 0;
};

// The guarded memory of one trial's arguments.
class ArrayGuards {
 public:
  // While it lives, this thread's new private arrays belong to `guards`, as part of `argument`.
  class Collect {
   public:
    Collect(ArrayGuards& guards, size_t argument);
    ~Collect();
    Collect(const Collect&) = delete;
    Collect& operator=(const Collect&) = delete;

   private:
    ArrayGuards* outer_;
    size_t outer_argument_;
  };
  // To what is being collected, if anything is. `what` for people: "float32[4, 8]".
  static void add(std::shared_ptr<const GuardedBlock> memory, Role role, bool read_only,
                  std::string what);

  std::vector<std::span<std::byte>> memory() const;
  bool any_in_out() const;
  // Makes the patterns whole again that `overrun` found damaged.
  void repair();
  // These three are what `Trial` has under the same names.
  void arm();
  std::optional<std::string> overrun() const;
  std::optional<std::string> trespass(const void* address) const;

 private:
  struct Member {
    std::shared_ptr<const GuardedBlock> memory;
    bool read_only, in_out;
    std::string text;  // "argument 2 (float32[4, 8])"
  };
  std::vector<Member> members_;
  bool armed_ = false;
  mutable bool damaged_ = false;
};

}  // namespace detail
}  // namespace ejk
