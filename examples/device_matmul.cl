// c[m, n] = a[m, k] b[k, n], row-major. A group computes a tile of TILE x TILE elements from parts of a and b that are
// DEPTH deep, one item a column of PER_ITEM of them.
#define LINES (TILE / PER_ITEM)

__kernel EJK_GROUP(TILE, LINES, 1)
void matmul(int m, int n, int k, __global const float* restrict a, __global const float* restrict b,
            __global float* restrict c) {
  __local float a_part[TILE * DEPTH];
  __local float b_part[DEPTH * TILE];
  const int column = get_local_id(0), line = get_local_id(1), item = line * TILE + column;
  const int row0 = get_group_id(1) * TILE, column0 = get_group_id(0) * TILE;
  float sum[PER_ITEM];
  for (int i = 0; i < PER_ITEM; ++i) sum[i] = 0.f;

  for (int begin = 0; begin < k; begin += DEPTH) {
    for (int e = item; e < TILE * DEPTH; e += TILE * LINES) {
      const int row = row0 + e / DEPTH, at = begin + e % DEPTH;
      a_part[e] = row < m && at < k ? a[(size_t)row * k + at] : 0.f;
    }
    for (int e = item; e < DEPTH * TILE; e += TILE * LINES) {
      const int at = begin + e / TILE, col = column0 + e % TILE;
      b_part[e] = at < k && col < n ? b[(size_t)at * n + col] : 0.f;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int p = 0; p < DEPTH; ++p)
      for (int i = 0; i < PER_ITEM; ++i)
        sum[i] += a_part[(line * PER_ITEM + i) * DEPTH + p] * b_part[p * TILE + column];
    barrier(CLK_LOCAL_MEM_FENCE);
  }

  for (int i = 0; i < PER_ITEM; ++i) {
    const int row = row0 + line * PER_ITEM + i;
    if (row < m && column0 + column < n) c[(size_t)row * n + column0 + column] = sum[i];
  }
}
