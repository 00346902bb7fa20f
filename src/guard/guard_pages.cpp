// SPDX-License-Identifier: Apache-2.0
// Pages around arrays: closed in a child, where a fault in them tells which array was overrun.
#include <ejk/detail/guard_pages.h>

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <new>
#include <utility>

#include "base/pages.h"
#include "base/process.h"

namespace ejk::detail {
namespace {

using base::page_size;

constexpr std::byte pattern = GuardedBlock::pattern;

// At each end; of most of it only addresses, never touched. A row or a block too far must not land
// behind it, in what happens to be mapped there.
size_t zone_size() { return 16 * page_size(); }

size_t rounded_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

bool changed(std::byte b) { return b != pattern; }

// A page that can be written at once, also after a fork: a private one would have to be copied
// first, for which a store that writes nothing is no reason. None if there are too many mappings.
void put_page(std::byte* at) {
  void* const page = ::mmap(at, page_size(), PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  if (page != MAP_FAILED) *static_cast<volatile std::byte*>(page) = std::byte{0};
}

}  // namespace

GuardedMemory::GuardedMemory(size_t bytes, const void* like) : size_(bytes) {
  const size_t zone = zone_size();
  if (bytes > SIZE_MAX / 2) throw std::bad_alloc();
  const size_t aligned = rounded_up(bytes, alignment);
  const bool huge = bytes >= base::huge_page && base::on_huge_pages(like);
  all_ = rounded_up(aligned, page_size()) + 2 * zone + (huge ? base::huge_page : 0);
  void* got = ::mmap(nullptr, all_, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (got == MAP_FAILED) throw std::bad_alloc();
  pages_ = static_cast<std::byte*>(got);
  if (huge) {
    // The zone behind begins where a huge page would.
    const size_t past = reinterpret_cast<uintptr_t>(pages_ + all_ - zone) % base::huge_page;
    ::munmap(pages_ + all_ - past, past);
    ::munmap(pages_, base::huge_page - past);
    pages_ += base::huge_page - past;
    all_ -= base::huge_page;
    base::ask_for_huge_pages(pages_ + zone, all_ - 2 * zone);
  }
  data_ = pages_ + all_ - zone - aligned;
  repair();
  // As in a program, there is memory beside an array: a masked load or store that reaches over an
  // end, though it touches nothing there, takes hundreds of cycles where there is no page.
  put_page(pages_ + zone - page_size());
  put_page(pages_ + all_ - zone);
}

GuardedMemory::~GuardedMemory() { ::munmap(pages_, all_); }

// What cannot be closed (too many mappings) stays open: less is noticed, nothing breaks.
void GuardedMemory::arm(bool read_only) const {
  const size_t zone = zone_size();
  (void)::mprotect(pages_, zone, PROT_NONE);
  (void)::mprotect(pages_ + all_ - zone, zone, PROT_NONE);
  if (read_only && all_ > 2 * zone) (void)::mprotect(pages_ + zone, all_ - 2 * zone, PROT_READ);
}

std::optional<std::ptrdiff_t> GuardedMemory::overrun() const {
  const std::byte *begin = pages_ + zone_size(), *end = pages_ + all_ - zone_size();
  for (const std::byte* at = end; at != data_ + size_; --at)
    if (at[-1] != pattern) return at - (data_ + size_);
  const std::byte* first = std::find_if(begin, static_cast<const std::byte*>(data_), changed);
  if (first != data_) return first - data_;
  return std::nullopt;
}

void GuardedMemory::repair() const {
  std::fill(pages_ + zone_size(), data_, pattern);
  std::fill(data_ + size_, pages_ + all_ - zone_size(), pattern);
}

GuardedMemory::Place GuardedMemory::place_of(const void* address) const {
  const auto* at = static_cast<const std::byte*>(address);
  const std::less<> less;  // pointers of different objects
  if (less(at, pages_) || !less(at, pages_ + all_)) return Place::elsewhere;
  if (less(at, pages_ + zone_size())) return Place::before;
  return less(at, pages_ + all_ - zone_size()) ? Place::inside : Place::behind;
}

// ---- the arrays of a trial ---------------------------------------------------------------------

namespace {
// Copies of arguments are nested in many ways (optionals, tuples, lists, structs): that every array
// reports itself is simpler than asking all of these for theirs.
thread_local ArrayGuards* collecting = nullptr;
thread_local size_t collecting_argument = 0;

std::string bytes_text(std::ptrdiff_t n) {
  return std::to_string(n) + (n == 1 ? " byte" : " bytes");
}
}  // namespace

ArrayGuards::Collect::Collect(ArrayGuards& guards, size_t argument)
    : outer_(std::exchange(collecting, &guards)),
      outer_argument_(std::exchange(collecting_argument, argument)) {}

ArrayGuards::Collect::~Collect() {
  collecting = outer_;
  collecting_argument = outer_argument_;
}

void ArrayGuards::add(std::shared_ptr<const GuardedBlock> memory, Role role, bool read_only,
                      std::string what) {
  if (collecting == nullptr) return;
  std::string text =
      "argument " + std::to_string(collecting_argument) + " (" + std::move(what) + ")";
  collecting->members_.push_back(
      {std::move(memory), read_only, role == Role::in_out, std::move(text)});
}

std::vector<std::span<std::byte>> ArrayGuards::memory() const {
  std::vector<std::span<std::byte>> all;
  for (const Member& m : members_)
    if (const auto here = m.memory->here(); here.data() != nullptr) all.push_back(here);
  return all;
}

bool ArrayGuards::any_in_out() const { return std::ranges::any_of(members_, &Member::in_out); }

void ArrayGuards::repair() {
  if (!std::exchange(damaged_, false)) return;
  for (const Member& m : members_)
    if (!(armed_ && m.read_only)) m.memory->repair();
}

void ArrayGuards::arm() {
  for (const Member& m : members_) m.memory->arm(m.read_only);
  armed_ = true;
}

std::optional<std::string> ArrayGuards::overrun() const {
  for (const Member& m : members_) {
    const auto distance = m.memory->overrun();
    if (!distance) continue;
    damaged_ = true;
    if (*distance > 0)
      return "wrote at least " + bytes_text(*distance) + " past the end of " + m.text;
    return "wrote at least " + bytes_text(-*distance) + " before the begin of " + m.text;
  }
  return std::nullopt;
}

std::optional<std::string> ArrayGuards::trespass(const void* address) const {
  for (const Member& m : members_) {
    const auto* at = static_cast<const std::byte*>(address);
    const std::span<std::byte> here = m.memory->here();
    const auto place = m.memory->place_of(address);
    if (place == GuardedBlock::Place::before)
      return "read or wrote " + bytes_text(here.data() - at) + " before the begin of " + m.text;
    if (place == GuardedBlock::Place::behind)
      return "read or wrote " + bytes_text(at - (here.data() + here.size()) + 1) +
             " past the end of " + m.text;
    if (place == GuardedBlock::Place::inside && m.read_only)
      return "wrote into " + m.text + ", which is an input";
  }
  return std::nullopt;
}

}  // namespace ejk::detail
