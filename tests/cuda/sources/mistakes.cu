// SPDX-License-Identifier: Apache-2.0
// Kernels with one mistake each, and beside them the same without it. A comment names the line in which
// the emulation has to find it.
#define THREADS 64

// ---- barriers

extern "C" __global__ void reverses(const float* from, float* to) {
  __shared__ float all[THREADS];
  all[threadIdx.x] = from[blockIdx.x * THREADS + threadIdx.x];
  __syncthreads();
  to[blockIdx.x * THREADS + threadIdx.x] = all[THREADS - 1 - threadIdx.x];
}

extern "C" __global__ void reverses_without_barrier(const float* from, float* to) {
  __shared__ float all[THREADS];
  all[threadIdx.x] = from[threadIdx.x];
  to[threadIdx.x] = all[THREADS - 1 - threadIdx.x];  // reads too early
}

extern "C" __global__ void writes_again_without_barrier(float* to) {
  __shared__ float all[THREADS];
  for (int i = 0; i < 2; ++i) {
    all[threadIdx.x] = static_cast<float>(i);  // others still read
    __syncthreads();
    to[threadIdx.x] = all[(threadIdx.x + 1) % THREADS];
  }
}

extern "C" __global__ void half_of_the_threads_wait() {
  if (threadIdx.x < THREADS / 2) __syncthreads();  // not for all
}

extern "C" __global__ void threads_wait_at_two_barriers() {
  if (threadIdx.x < 10) __syncthreads();  // first of two
  else
    __syncthreads();  // second of two
}

// ---- memory

extern "C" __global__ void writes_behind(float* to, int n) {
  to[n - 1 + threadIdx.x] = 1.f;  // one too far
}

extern "C" __global__ void reads_before(const float* from, float* to) {
  to[0] = from[-1];  // one too early
}

extern "C" __global__ void indexes_outside(float* to, int at) {
  __shared__ float first[THREADS];
  first[at + threadIdx.x] = 1.f;  // not in the array
  __syncthreads();
  to[threadIdx.x] = first[threadIdx.x];
}

struct alignas(16) Four {
  float x, y, z, w;
};
extern "C" __global__ void reads_four_at(const float* from, int at, float* to) {
  to[0] = reinterpret_cast<const Four*>(from + at)->w;  // misaligned
}

extern "C" __global__ void product_of(int a, int b, int* to) {
  to[0] = a * b;  // does not fit
}

extern "C" __global__ void copies_shared(float* to) {
  __shared__ float nobody_writes[THREADS];
  to[blockIdx.x * THREADS + threadIdx.x] = nobody_writes[threadIdx.x];
  __syncthreads();
  nobody_writes[threadIdx.x] = 1.f;
}

extern "C" __global__ void sets(float* to, float value) { to[threadIdx.x] = value; }

extern "C" __global__ void adds_atomically(int* sums) {
  __shared__ int sum;
  if (threadIdx.x == 0) sum = 0;
  __syncthreads();
  atomicAdd(&sum, static_cast<int>(threadIdx.x));
  __syncthreads();
  if (threadIdx.x == 0) atomicAdd(sums, sum);
}

extern "C" __global__ void order_of_threads(int* turn, int* order) {
  order[atomicAdd(turn, 1)] = static_cast<int>(threadIdx.x);
}

// ---- warps

extern "C" __global__ void sums_of_warps(const float* from, float* to) {
  float sum = from[threadIdx.x];
  for (int bits = 16; bits > 0; bits /= 2) sum += __shfl_xor_sync(~0u, sum, bits);
  to[threadIdx.x] = sum;
}

extern "C" __global__ void shuffles(int* to) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  to[threadIdx.x] = __shfl_sync(~0u, lane, 5);
  to[THREADS + threadIdx.x] = __shfl_down_sync(~0u, lane, 3);
  to[2 * THREADS + threadIdx.x] = __shfl_up_sync(~0u, lane, 1, 8);
}

extern "C" __global__ void neighbours_of_a_warp(float* to, int in_order) {
  __shared__ float all[THREADS];
  all[threadIdx.x] = static_cast<float>(threadIdx.x);
  if (in_order) __syncwarp();
  to[threadIdx.x] = all[threadIdx.x ^ 1];  // reads its neighbour
}

extern "C" __global__ void a_lane_is_missing(float* to) {
  if (threadIdx.x != 7) to[threadIdx.x] = __shfl_xor_sync(~0u, 1.f, 1);  // not all lanes
}

// ---- tensor cores: a [16, 16], b [16, 8] as its columns, c [16, 8]

extern "C" __global__ void multiplies_tiles(const unsigned short* a, const unsigned short* b, float* c) {
  const unsigned g = threadIdx.x / 4, t = threadIdx.x % 4;
  const auto two = [](const unsigned short* at) { return at[0] | static_cast<unsigned>(at[1]) << 16; };
  const unsigned ra[4] = {two(a + 16 * g + 2 * t), two(a + 16 * (g + 8) + 2 * t),
                          two(a + 16 * g + 2 * t + 8), two(a + 16 * (g + 8) + 2 * t + 8)};
  const unsigned rb[2] = {two(b + 16 * g + 2 * t), two(b + 16 * g + 2 * t + 8)};
  float d[4] = {};
  emulated_mma_bf16(d, ra, rb, d);
  for (unsigned i = 0; i < 4; ++i) c[8 * (g + i / 2 * 8) + 2 * t + i % 2] = d[i];
}

extern "C" __global__ __launch_bounds__(32) void at_most_32_threads() {}

#if THREADS == 1
extern "C" __global__ void left_out() {}
#endif
