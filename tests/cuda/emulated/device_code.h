// SPDX-License-Identifier: Apache-2.0
// Makes CUDA C++ readable for a host compiler; put in front of every source that the emulation
// compiles.
#pragma once

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <initializer_list>
#include <new>
#include <tuple>
#include <type_traits>
#include <utility>

#include "seam.h"

#define EJK_EMULATED_CUDA 1

#define __global__
#define __device__
#define __host__
#define __constant__ static const
#define __shared__ static __attribute__((section("emulated_shared")))
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(...)

extern "C" __attribute__((visibility("hidden"))) emulated::Driver emulated_driver;

#define threadIdx (emulated_driver.place.thread)
#define blockIdx (emulated_driver.place.block)
#define blockDim (emulated_driver.place.block_size)
#define gridDim (emulated_driver.place.grid_size)
#define warpSize 32

// ---- barriers, warps, atomics: with the line of the kernel that asks for them

#define __syncthreads() emulated_driver.barrier(__builtin_LINE())
#define __syncwarp(...) emulated::sync_warp(emulated::mask_of(__VA_ARGS__))

namespace emulated {

constexpr unsigned mask_of(unsigned mask = ~0u) { return mask; }

inline void sync_warp(unsigned mask, int line = __builtin_LINE()) {
  WarpRequest request{.mask = mask, .line = line, .from = emulated_driver.lane};
  emulated_driver.exchange(request);
}

template <class T>
T shuffle(unsigned mask, T value, unsigned from, int line) {
  static_assert(sizeof(T) <= 8);
  WarpRequest request{.mask = mask, .line = line, .from = from};
  memcpy(request.mine, &value, sizeof value);
  emulated_driver.exchange(request);
  memcpy(&value, request.mine, sizeof value);
  return value;
}

// Lanes do not reach beyond their group of `width`.
template <class T>
T shuffle_within(unsigned mask, T value, int distance, int width, int line) {
  const int lane = static_cast<int>(emulated_driver.lane), to = lane + distance;
  const bool inside = lane / width == to / width && to >= 0;
  return shuffle(mask, value, static_cast<unsigned>(inside ? to : lane), line);
}

// Its own reads and writes are no accesses of the kernel.
template <class T>
__attribute__((noinline, no_sanitize("thread"))) T atomically(T* at, T (*change)(T, T), T operand,
                                                              const void* code) {
  emulated_driver.access(at, sizeof *at, Access::atomic, code);
  const T before = *at;
  *at = change(before, operand);
  return before;
}

}  // namespace emulated

template <class T>
T __shfl_sync(unsigned mask, T value, int lane, int width = 32, int line = __builtin_LINE()) {
  const int own = static_cast<int>(emulated_driver.lane);
  return emulated::shuffle(mask, value, static_cast<unsigned>(own / width * width + lane % width),
                           line);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32, int line = __builtin_LINE()) {
  const int own = static_cast<int>(emulated_driver.lane);
  return emulated::shuffle_within(mask, value, (own ^ bits) - own, width, line);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32,
                   int line = __builtin_LINE()) {
  return emulated::shuffle_within(mask, value, static_cast<int>(by), width, line);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32, int line = __builtin_LINE()) {
  return emulated::shuffle_within(mask, value, -static_cast<int>(by), width, line);
}

#define EMULATED_ATOMIC(name, result)                                                 \
  template <class T>                                                                  \
  __attribute__((noinline)) T name(T* at, std::type_identity_t<T> with) {             \
    return emulated::atomically<T>(                                                   \
        at, [](T a, T b) -> T { return result; }, with, __builtin_return_address(0)); \
  }
EMULATED_ATOMIC(atomicAdd, a + b)
EMULATED_ATOMIC(atomicMax, a < b ? b : a)
EMULATED_ATOMIC(atomicMin, b < a ? b : a)
EMULATED_ATOMIC(atomicExch, b)

// ---- functions that a host does not have

#define rsqrtf emulated_rsqrtf
inline float rsqrtf(float x) { return 1.f / sqrtf(x); }
inline float __expf(float x) { return expf(x); }
inline float __uint_as_float(unsigned bits) { return __builtin_bit_cast(float, bits); }
inline unsigned __float_as_uint(float x) { return __builtin_bit_cast(unsigned, x); }

// ---- a tensor core: d = a b + c of the tiles that the lanes of a warp hold together
// (mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32). Lane 4 g + t holds of a the rows g and g +
// 8 and of b the column g, both at 2 t, 2 t + 1, 2 t + 8 and 2 t + 9; of c and d the rows g and g +
// 8 of the columns 2 t and 2 t + 1.
inline void emulated_mma_bf16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2],
                              const float (&c)[4], int line = __builtin_LINE()) {
  using namespace emulated;
  unsigned char all[warp_size][lane_bytes];
  WarpRequest request{.line = line, .all = all};
  memcpy(request.mine, a, sizeof a);
  memcpy(request.mine + sizeof a, b, sizeof b);
  emulated_driver.exchange(request);
  const auto bf16 = [&](unsigned lane, unsigned index) {
    uint16_t bits;
    memcpy(&bits, &all[lane][2 * index], 2);
    return __uint_as_float(static_cast<unsigned>(bits) << 16);
  };
  const unsigned g = emulated_driver.lane / 4, t = emulated_driver.lane % 4;
  for (unsigned i = 0; i < 4; ++i) {
    float sum = c[i];
    const unsigned low_row = i < 2 ? 0 : 1, column = 2 * t + i % 2;
    for (unsigned k = 0; k < 16; ++k) {
      const unsigned owner = k % 8 / 2, far = k / 8;
      // Registers of a: {rows g, k < 8}, {rows g + 8, k < 8}, {rows g, k >= 8}, {rows g + 8, k >=
      // 8}.
      sum += bf16(4 * g + owner, 4 * far + 2 * low_row + k % 2) *
             bf16(4 * column + owner, 8 + 2 * far + k % 2);
    }
    d[i] = sum;
  }
}

// ---- what the driver sees of a kernel

namespace emulated {

template <class... P>
struct Captured {
  using Values = std::tuple<std::remove_cv_t<P>...>;
  static constexpr size_t sizes[] = {sizeof(P)..., 0};
  template <void (*kernel)(P...)>
  static constexpr Kernel describe(const char* name, int max_threads) {
    return {name, max_threads, sizeof...(P), sizes, sizeof(Values), &capture, &run<kernel>};
  }
  static void capture(void** parameters, void* to) {
    [&]<size_t... i>(std::index_sequence<i...>) {
      new (to) Values(*static_cast<std::remove_cv_t<P>*>(parameters[i])...);
    }
    (std::index_sequence_for<P...>{});
  }
  template <void (*kernel)(P...)>
  static void run(const void* values) {
    std::apply(kernel, *static_cast<const Values*>(values));
  }
};

template <class... P>
Captured<P...> captured(void (*)(P...));

constexpr int last_of(std::initializer_list<int> values) { return values.end()[-1]; }

}  // namespace emulated
