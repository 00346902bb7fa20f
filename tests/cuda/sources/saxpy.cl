// SPDX-License-Identifier: Apache-2.0
// y += alpha x.
__kernel EJK_GROUP(GROUP, 1, 1) void saxpy(int n, float alpha, __global const float* restrict x,
                                           __global float* restrict y) {
  const int first = get_group_id(0) * GROUP * ITEMS + get_local_id(0);
  for (int i = 0; i < ITEMS; ++i) {
    const int at = first + i * GROUP;
    if (at < n) y[at] = fma(alpha, x[at], y[at]);
  }
}
