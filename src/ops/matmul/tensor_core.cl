// SPDX-License-Identifier: Apache-2.0
// c = a b + bias of bfloat16 with CUDA's tensor cores. block.cl stands before it. A warp makes TM x TN elements of a
// group's block, in tiles of 16 x 8. C_BF16: so are the elements of c, else float.

#define WARPS_X (BN / TN)
#define WARPS_Y (BM / TM)
#define ITEMS (32 * WARPS_X * WARPS_Y)
#define LINE (BK + PAD)
#define A_NUMBERS (BM * BK / ITEMS)
#define B_NUMBERS (BN * BK / ITEMS)

#if C_BF16
typedef ushort C;
#define PUT_C(x, to) (to)[0] = to_bf16(x)
#else
typedef float C;
#define PUT_C(x, to) (to)[0] = (x)
#endif

// An item's share of a part whose lines have `length` elements, WIDTH of which are read at once. Those that are not
// there are zeros.
EJK_DEVICE void fetch(ushort* numbers, int count, int item, const ushort* from, int stride, int length, int lines_left,
                      int length_left) {
#pragma unroll
  for (int e = 0; e < count / WIDTH; ++e) {
    const int at = (item + e * ITEMS) * WIDTH, line = at / length, first = at % length;
    const ushort* here = from + (size_t)line * stride + first;
    if (WIDTH > 1 && line < lines_left && first + WIDTH <= length_left) {
      const EjkVector<ushort, (WIDTH < 2 ? 2 : WIDTH)> all = ejk_vload<(WIDTH < 2 ? 2 : WIDTH)>(0, here);
#pragma unroll
      for (int w = 0; w < WIDTH; ++w) numbers[e * WIDTH + w] = all.s[w];
    } else {
#pragma unroll
      for (int w = 0; w < WIDTH; ++w)
        numbers[e * WIDTH + w] = line < lines_left && first + w < length_left ? here[w] : (ushort)0;
    }
  }
}
// Puts them in lines along the depth, as the tiles are read. Along: so they lie in memory.
EJK_DEVICE void keep(ushort* to, const ushort* numbers, int count, int item, int length, bool along) {
#pragma unroll
  for (int e = 0; e < count; ++e) {
    const int at = (item + e / WIDTH * ITEMS) * WIDTH + e % WIDTH, line = at / length, place = at % length;
    to[along ? line * LINE + place : place * LINE + line] = numbers[e];
  }
}
EJK_DEVICE uint two_at(const ushort* at) { return at[0] | (uint)at[1] << 16; }

__kernel EJK_GROUP(32 * WARPS_X, WARPS_Y, 1)
void matmul(int m, int n, int k, int a_batch, int b_batch, int groups, const ushort* restrict all_a,
            const ushort* restrict all_b, const ushort* restrict bias, const int* restrict sizes, C* restrict all_c) {
  __local ushort a_part[STAGES * BM * LINE];
  __local ushort b_part[STAGES * BN * LINE];
  Block block;
  if (!block_of(m, n, k, a_batch, b_batch, sizes, groups, &block)) return;
  const int x = (int)get_local_id(0), warp_x = x / 32, warp_y = (int)get_local_id(1);
  const int item = warp_y * 32 * WARPS_X + x, lane = x % 32, g = lane / 4, t = lane % 4;
  const int rows = block.row_end - block.row, columns = block.column_end - block.column;
  const ushort* a = all_a + block.a + (size_t)block.row * A_ROW_STEP + (size_t)block.start * A_COLUMN_STEP;
  const ushort* b = all_b + block.b + (size_t)block.start * B_ROW_STEP + (size_t)block.column * B_COLUMN_STEP;

  ushort a_next[A_NUMBERS], b_next[B_NUMBERS];
#if A_ACROSS
#define FETCH_A(q) fetch(a_next, A_NUMBERS, item, a + (size_t)(q) * m, m, BM, block.depth - (q), rows)
#define KEEP_A(stage) keep(a_part + (stage) * BM * LINE, a_next, A_NUMBERS, item, BM, false)
#else
#define FETCH_A(q) fetch(a_next, A_NUMBERS, item, a + (q), k, BK, rows, block.depth - (q))
#define KEEP_A(stage) keep(a_part + (stage) * BM * LINE, a_next, A_NUMBERS, item, BK, true)
#endif
#if B_ACROSS
#define FETCH_B(q) fetch(b_next, B_NUMBERS, item, b + (q), k, BK, columns, block.depth - (q))
#define KEEP_B(stage) keep(b_part + (stage) * BN * LINE, b_next, B_NUMBERS, item, BK, true)
#else
#define FETCH_B(q) fetch(b_next, B_NUMBERS, item, b + (size_t)(q) * n, n, BN, block.depth - (q), columns)
#define KEEP_B(stage) keep(b_part + (stage) * BN * LINE, b_next, B_NUMBERS, item, BN, false)
#endif

  float sum[TM / 16][TN / 8][4];
#pragma unroll
  for (int i = 0; i < TM / 16; ++i)
#pragma unroll
    for (int j = 0; j < TN / 8; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) sum[i][j][e] = 0.f;

  FETCH_A(0);
  FETCH_B(0);
  for (int begin = 0, stage = 0; begin < block.depth; begin += BK, stage = (stage + 1) % STAGES) {
    // With one stage, what is there must have been read; with two it was, before the barrier of the last part.
    if (STAGES == 1 && begin > 0) barrier(CLK_LOCAL_MEM_FENCE);
    KEEP_A(stage);
    KEEP_B(stage);
    barrier(CLK_LOCAL_MEM_FENCE);
    if (begin + BK < block.depth) {
      FETCH_A(begin + BK);
      FETCH_B(begin + BK);
    }
    const ushort* a_lines = a_part + stage * BM * LINE + (warp_y * TM + g) * LINE + 2 * t;
    const ushort* b_lines = b_part + stage * BN * LINE + (warp_x * TN + g) * LINE + 2 * t;
#pragma unroll
    for (int q = 0; q < BK; q += 16) {
      uint right[TN / 8][2];
#pragma unroll
      for (int j = 0; j < TN / 8; ++j) {
        right[j][0] = two_at(b_lines + j * 8 * LINE + q);
        right[j][1] = two_at(b_lines + j * 8 * LINE + q + 8);
      }
#pragma unroll
      for (int i = 0; i < TM / 16; ++i) {
        const ushort* upper = a_lines + i * 16 * LINE + q;
        const ushort* lower = upper + 8 * LINE;
        const uint left[4] = {two_at(upper), two_at(lower), two_at(upper + 8), two_at(lower + 8)};
#pragma unroll
        for (int j = 0; j < TN / 8; ++j) ejk_mma_bf16(sum[i][j], left, right[j]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < TM / 16; ++i)
#pragma unroll
    for (int j = 0; j < TN / 8; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int row = warp_y * TM + 16 * i + g + e / 2 * 8, column = warp_x * TN + 8 * j + 2 * t + e % 2;
        if (row >= rows || column >= columns) continue;
        float result = sum[i][j][e];
#if BIAS
        result += from_bf16(bias[block.column + column]);
#endif
        PUT_C(result, all_c + block.c + (size_t)(block.row + row) * n + block.column + column);
      }
}
