// SPDX-License-Identifier: Apache-2.0
// The threads of a block as fibers that take turns in shuffled order.
//
// A fiber runs until it comes to a barrier, asks its warp for something, or ends. Then another one
// runs, so that a thread that relies on one it did not wait for meets the state before. All blocks
// of the process run one after the other on the OS thread that asks for them.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "seam.h"

namespace emulated {

// What went wrong in a kernel: a status of CUDA's driver, and where and why.
struct Fault {
  int status = 0;
  std::string text;
  explicit operator bool() const { return status != 0; }
};

struct Fiber;

class Block {
 public:
  Block(Extent size, Extent grid, std::function<void()> body);
  ~Block();

  Fault run(Extent index, std::mt19937& random);

  // Of the running fiber; they let others run.
  void barrier(int line);
  void exchange(WarpRequest& request);
  [[noreturn]] void fail(Fault fault);

  const Place& place() const;
  size_t thread() const { return current_; }
  // Grows when all threads, or all that a request of the thread's warp names, have waited for each
  // other.
  uint64_t barriers() const { return barriers_; }
  uint64_t exchanges(size_t thread) const;

  // Called whenever another fiber begins to run.
  std::function<void()> on_switch;

  // Whether the address belongs to the running fiber's stack.
  bool on_stack(const void* at) const;

 private:
  [[noreturn]] static void enter();
  void resume(size_t fiber);
  void yield();
  using Lanes = std::array<Fiber*, warp_size>;  // null: does not take part
  std::optional<Lanes> come_together(size_t thread) const;
  static void answer(const Lanes& lanes);
  bool release_warps();
  bool release_barrier();
  Fault stuck() const;

  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::function<void()> body_;
  std::vector<size_t> order_;
  size_t current_ = 0;
  uint64_t barriers_ = 0;
  Fault fault_;
  void* scheduler_[5] = {};  // where __builtin_longjmp returns to
};

}  // namespace emulated
