// SPDX-License-Identifier: Apache-2.0
// c = a b + bias of bfloat16 with CUDA's tensor cores. block.cl stands before it. A warp makes TM x TN elements of a
// group's block, in tiles of 16 x 8.

#define WARPS_X (BN / TN)
#define WARPS_Y (BM / TM)
#define ITEMS (32 * WARPS_X * WARPS_Y)
#define A_LINE (BK + PAD)
#define B_LINE A_LINE
#define A_PART (BM * A_LINE)
#define B_PART (BN * B_LINE)

#define AS_IT_IS(from) (from)[0]
FETCH(fetch_a, A, A, AS_IT_IS, SOME)
FETCH(fetch_b, B, B, AS_IT_IS, SOME)
// Puts them in lines along the depth, as the tiles are read.
EJK_DEVICE void keep(ushort* to, int to_line, const ushort* numbers, int count, int item, int length, bool along) {
#pragma unroll
  for (int e = 0; e < count; ++e) {
    const int at = (item + e / WIDTH * ITEMS) * WIDTH + e % WIDTH, line = at / length, place = at % length;
    to[along ? line * to_line + place : place * to_line + line] = numbers[e];
  }
}
EJK_DEVICE uint two_at(const ushort* at) { return at[0] | (uint)at[1] << 16; }

__kernel EJK_GROUP(32 * WARPS_X, WARPS_Y, 1)
void matmul(PRODUCT) {
  __local ushort a_part[STAGES * A_PART];
  __local ushort b_part[STAGES * B_PART];
  Block block;
  if (!block_of(m, n, k, row_blocks, a_batch, b_batch, sizes, groups, &block)) return;
  const int x = (int)get_local_id(0), warp_x = x / 32, warp_y = (int)get_local_id(1);
  const int item = warp_y * 32 * WARPS_X + x, lane = x % 32, g = lane / 4, t = lane % 4;
  const int rows = block.row_end - block.row, columns = block.column_end - block.column;
  const ushort* a = all_a + block.a + (size_t)block.row * A_ROW_STEP + (size_t)block.start * A_COLUMN_STEP;
  const ushort* b = all_b + block.b + (size_t)block.start * B_ROW_STEP + (size_t)block.column * B_COLUMN_STEP;

  ushort a_next[A_NUMBERS], b_next[B_NUMBERS];
  float sum[TM / 16][TN / 8][4];
#pragma unroll
  for (int i = 0; i < TM / 16; ++i)
#pragma unroll
    for (int j = 0; j < TN / 8; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) sum[i][j][e] = 0.f;

  EACH_PART {
    PART_IS_THERE
    const ushort* a_lines = a_part + stage * A_PART + (warp_y * TM + g) * A_LINE + 2 * t;
    const ushort* b_lines = b_part + stage * B_PART + (warp_x * TN + g) * B_LINE + 2 * t;
#pragma unroll
    for (int q = 0; q < BK; q += 16) {
      uint right[TN / 8][2];
#pragma unroll
      for (int j = 0; j < TN / 8; ++j) {
        right[j][0] = two_at(b_lines + j * 8 * B_LINE + q);
        right[j][1] = two_at(b_lines + j * 8 * B_LINE + q + 8);
      }
#pragma unroll
      for (int i = 0; i < TM / 16; ++i) {
        const ushort* upper = a_lines + i * 16 * A_LINE + q;
        const ushort* lower = upper + 8 * A_LINE;
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
        PUT_SUM(sum[i][j][e], row, column)
      }
}
