// SPDX-License-Identifier: Apache-2.0
// c[m, n] = a[m, k] b[k, n]. A group has a BM x BN tile, a work-item TM x TN of it.
#define COLUMNS (BN / TN)
#define ROWS (BM / TM)
#define ITEMS (COLUMNS * ROWS)

__kernel EJK_GROUP(COLUMNS, ROWS, 1) void tiled_matmul(int m, int n, int k,
                                                       __global const float* restrict a,
                                                       __global const float* restrict b,
                                                       __global float* restrict c) {
  __local float a_tile[BK][BM];
  __local float b_tile[BK][BN];
  const int x = get_local_id(0), y = get_local_id(1), item = y * COLUMNS + x;
  const int row = get_group_id(1) * BM, column = get_group_id(0) * BN;
  float sums[TM][TN];
  for (int i = 0; i < TM; ++i)
    for (int j = 0; j < TN; ++j) sums[i][j] = 0.f;
  for (int q0 = 0; q0 < k; q0 += BK) {
    for (int e = item; e < BK * BM; e += ITEMS) {
      const int q = e % BK, r = e / BK;
      a_tile[q][r] = row + r < m && q0 + q < k ? a[(size_t)(row + r) * k + q0 + q] : 0.f;
    }
    for (int e = item; e < BK * BN; e += ITEMS) {
      const int q = e / BN, r = e % BN;
      b_tile[q][r] = q0 + q < k && column + r < n ? b[(size_t)(q0 + q) * n + column + r] : 0.f;
    }
    barrier(CLK_LOCAL_MEM_FENCE);  // filled
    for (int q = 0; q < BK; ++q)
      for (int i = 0; i < TM; ++i)
        for (int j = 0; j < TN; ++j)
          sums[i][j] = fma(a_tile[q][y * TM + i], b_tile[q][x + j * COLUMNS], sums[i][j]);
    barrier(CLK_LOCAL_MEM_FENCE);  // used
  }
  for (int i = 0; i < TM; ++i)
    for (int j = 0; j < TN; ++j) {
      const int r = row + y * TM + i, q = column + x + j * COLUMNS;
      if (r < m && q < n) c[(size_t)r * n + q] = sums[i][j];
    }
}
