// SPDX-License-Identifier: Apache-2.0
// c[m, n] = a[m, k] b[n, k]^T of bfloat16 with tensor cores; m a multiple of 16, n of 8, k of 16. A warp
// has a 16 x 8 tile.
EJK_DEVICE uint two_at(const ushort* at) { return at[0] | (uint)at[1] << 16; }

__kernel EJK_GROUP(32, 1, 1) void tensor_core(int n, int k, __global const ushort* a,
                                              __global const ushort* b, __global float* c) {
  const int g = get_local_id(0) / 4, t = get_local_id(0) % 4;
  const int row = get_group_id(1) * 16, column = get_group_id(0) * 8;
  float sums[4] = {0.f, 0.f, 0.f, 0.f};
  for (int q = 2 * t; q < k; q += 16) {
    const ushort* upper = a + (size_t)(row + g) * k + q;
    const ushort* lower = upper + (size_t)8 * k;
    const ushort* across = b + (size_t)(column + g) * k + q;
    const uint left[4] = {two_at(upper), two_at(lower), two_at(upper + 8), two_at(lower + 8)};
    const uint right[2] = {two_at(across), two_at(across + 8)};
    ejk_mma_bf16(sums, left, right);
  }
  for (int i = 0; i < 4; ++i)
    c[(size_t)(row + g + i / 2 * 8) * n + column + 2 * t + i % 2] = sums[i];
}
