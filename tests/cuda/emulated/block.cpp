// SPDX-License-Identifier: Apache-2.0
#include "block.h"

#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "platform/cuda/driver_api.h"

namespace emulated {

enum class Waits { not_at_all, for_barrier, for_warp, for_nothing_more };

// Registers are switched by the compiler's own setjmp: swapcontext asks the kernel for the signal
// mask at every switch, and sanitizers intercept longjmp.
struct Fiber {
  static constexpr size_t stack_bytes = 128 << 10, closed_bytes = 4096;

  Fiber()
      : stack(static_cast<char*>(mmap(nullptr, stack_bytes, PROT_READ | PROT_WRITE,
                                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))) {
    if (stack == MAP_FAILED) throw std::bad_alloc();
    mprotect(stack, closed_bytes, PROT_NONE);
  }
  ~Fiber() { munmap(stack, stack_bytes); }
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  char* stack;
  void* registers[5] = {};
  bool started = false;
  Place place;
  Waits waits = Waits::not_at_all;
  int line = 0;  // where it waits
  WarpRequest* request = nullptr;
  uint64_t exchanges = 0;
};

namespace {
Block* starting = nullptr;  // makecontext passes on nothing but ints
}

Block::Block(Extent size, Extent grid, std::function<void()> body) : body_(std::move(body)) {
  for (unsigned z = 0; z < size.z; ++z)
    for (unsigned y = 0; y < size.y; ++y)
      for (unsigned x = 0; x < size.x; ++x) {
        order_.push_back(fibers_.size());
        fibers_.push_back(std::make_unique<Fiber>());
        fibers_.back()->place = {{x, y, z}, {}, size, grid};
      }
}

Block::~Block() = default;

const Place& Block::place() const { return fibers_[current_]->place; }

uint64_t Block::exchanges(size_t thread) const { return fibers_[thread]->exchanges; }

bool Block::on_stack(const void* at) const {
  const char* begin = fibers_[current_]->stack;
  return begin <= at && at < begin + Fiber::stack_bytes;
}

// A fiber outlives its block: it runs the next one from here.
void Block::enter() {
  Block& block = *starting;
  Fiber& fiber = *block.fibers_[block.current_];
  for (;;) {
    block.body_();
    fiber.waits = Waits::for_nothing_more;
    block.yield();
  }
}

// Not inlined, as __builtin_longjmp must not be in the function that it returns to.
__attribute__((noinline)) static void jump(void** registers) { __builtin_longjmp(registers, 1); }

__attribute__((noinline)) void Block::resume(size_t fiber) {
  current_ = fiber;
  on_switch();
  Fiber& next = *fibers_[fiber];
  if (__builtin_setjmp(scheduler_) != 0) return;
  if (next.started) jump(next.registers);
  next.started = true;
  starting = this;
  ucontext_t context;
  getcontext(&context);
  context.uc_stack.ss_sp = next.stack;
  context.uc_stack.ss_size = Fiber::stack_bytes;
  context.uc_link = nullptr;
  makecontext(&context, reinterpret_cast<void (*)()>(&Block::enter), 0);
  setcontext(&context);
}

__attribute__((noinline)) void Block::yield() {
  Fiber& fiber = *fibers_[current_];
  if (__builtin_setjmp(fiber.registers) != 0) return;
  jump(scheduler_);
}

void Block::fail(Fault fault) {
  fault_ = std::move(fault);
  for (;;) yield();
}

void Block::barrier(int line) {
  Fiber& fiber = *fibers_[current_];
  fiber.waits = Waits::for_barrier;
  fiber.line = line;
  yield();
}

void Block::exchange(WarpRequest& request) {
  Fiber& fiber = *fibers_[current_];
  if ((request.mask >> (current_ % warp_size) & 1) == 0)
    fail({ejk::detail::cuda::launch_failed,
          fmt::format(
              "line {}: a thread takes part in a request of its warp whose mask does not name it",
              request.line)});
  fiber.waits = Waits::for_warp;
  fiber.line = request.line;
  fiber.request = &request;
  yield();
}

Fault Block::run(Extent index, std::mt19937& random) {
  for (auto& fiber : fibers_) {
    fiber->place.block = index;
    fiber->waits = Waits::not_at_all;
  }
  for (;;) {
    std::ranges::shuffle(order_, random);
    for (const size_t i : order_) {
      while (fibers_[i]->waits == Waits::not_at_all && !fault_) resume(i);
      if (fault_) return fault_;
    }
    if (std::ranges::all_of(fibers_, [](auto& f) { return f->waits == Waits::for_nothing_more; })) {
      ++barriers_;  // the next block's accesses are no race with those of this one
      return {};
    }
    if (!release_warps() && !release_barrier()) return stuck();
  }
}

// The lanes of a request, if all of them have come to it.
std::optional<Block::Lanes> Block::come_together(size_t thread) const {
  const WarpRequest& asked = *fibers_[thread]->request;
  const size_t first = thread / warp_size * warp_size;
  Lanes lanes = {};
  for (size_t lane = 0; lane < warp_size && first + lane < fibers_.size(); ++lane) {
    if ((asked.mask >> lane & 1) == 0) continue;
    lanes[lane] = fibers_[first + lane].get();
    if (lanes[lane]->waits != Waits::for_warp || lanes[lane]->line != asked.line ||
        lanes[lane]->request->mask != asked.mask)
      return std::nullopt;
  }
  return lanes;
}

void Block::answer(const Lanes& lanes) {
  unsigned char given[warp_size][lane_bytes];
  std::memset(given, undefined_byte, sizeof given);  // of lanes that do not take part
  for (size_t lane = 0; lane < warp_size; ++lane)
    if (lanes[lane] != nullptr) std::memcpy(given[lane], lanes[lane]->request->mine, lane_bytes);
  for (Fiber* fiber : lanes) {
    if (fiber == nullptr) continue;
    WarpRequest& request = *fiber->request;
    if (request.all != nullptr) std::memcpy(request.all, given, sizeof given);
    else std::memcpy(request.mine, given[request.from % warp_size], lane_bytes);
    fiber->waits = Waits::not_at_all;
    ++fiber->exchanges;
  }
}

bool Block::release_warps() {
  bool released = false;
  for (size_t i = 0; i < fibers_.size(); ++i) {
    if (fibers_[i]->waits != Waits::for_warp) continue;
    if (const auto lanes = come_together(i)) {
      answer(*lanes);
      released = true;
    }
  }
  return released;
}

bool Block::release_barrier() {
  const int line = fibers_.front()->line;
  if (!std::ranges::all_of(
          fibers_, [&](auto& f) { return f->waits == Waits::for_barrier && f->line == line; }))
    return false;
  for (auto& f : fibers_) f->waits = Waits::not_at_all;
  ++barriers_;
  return true;
}

Fault Block::stuck() const {
  std::set<int> barriers, requests;
  size_t waiting = 0;
  for (const auto& f : fibers_) {
    if (f->waits == Waits::for_barrier) barriers.insert(f->line);
    if (f->waits == Waits::for_warp) requests.insert(f->line);
    waiting += f->waits != Waits::for_nothing_more;
  }
  std::string text;
  const auto add = [&](const char* what, const std::set<int>& lines) {
    if (lines.empty()) return;
    text += fmt::format("{}{} in line{} {}", text.empty() ? "" : " and ", what,
                        lines.size() > 1 ? "s" : "", fmt::join(lines, ", "));
  };
  add("at a barrier", barriers);
  add("for their warp", requests);
  return {ejk::detail::cuda::launch_failed,
          fmt::format("{} of {} threads wait for ever, {}; the others have ended", waiting,
                      fibers_.size(), text)};
}

}  // namespace emulated
