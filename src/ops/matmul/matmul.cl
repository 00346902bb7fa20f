// SPDX-License-Identifier: Apache-2.0
// c = a b + bias, by items alone or by groups that share local memory. block.cl stands before it.

#define DIRECT 0
#define TILED 1

#if WIDTH == 1
#define SOME_BF16(from) from_bf16((from)[0])
#else
#define SOME_BF16(from) \
  EJK_JOIN(as_float, WIDTH)(EJK_JOIN(convert_uint, WIDTH)(SOME(from)) << (EJK_JOIN(uint, WIDTH))(16u))
#endif
#if A_BF16
#define SOME_OF_A SOME_BF16
#else
#define SOME_OF_A SOME
#endif
#if B_BF16
#define SOME_OF_B SOME_BF16
#else
#define SOME_OF_B SOME
#endif

#if WAY == DIRECT
// ---- one item per group: its tile of TM rows and TN vectors of WIDTH columns stays in registers

#define STRIP (TN * WIDTH)
#define PACK_A (PACK == 2)
#define PACK_B (PACK >= 1 || B_ACROSS)
// In steps of 2^n bytes the rows of a block would share few places of the cache.
#define A_LINE (BK + 16)

#if PACK_A
#define A_ARGUMENT EJK_LOCAL_PTR const float* a
#define A_AT(row, at) a[(row) * A_LINE + (at)]
#elif A_ACROSS
#define A_ARGUMENT __global const A* a, int m, int last
#define A_AT(row, at) ONE_OF_A(a + (size_t)(at) * m + min(row, last))
#else
#define A_ARGUMENT __global const A* const* a
#define A_AT(row, at) ONE_OF_A(a[row] + (at))
#endif

#define MULTIPLY(B_AT)                                                                       \
  for (int q = 0; q < depth; ++q) {                                                          \
    FLOATS line[TN];                                                                         \
    _Pragma("unroll") for (int v = 0; v < TN; ++v) line[v] = B_AT;                           \
    _Pragma("unroll") for (int r = 0; r < TM; ++r) {                                         \
      const FLOATS x = (FLOATS)(A_AT(r, q));                                                 \
      _Pragma("unroll") for (int v = 0; v < TN; ++v) sum[r][v] = fma(x, line[v], sum[r][v]); \
    }                                                                                        \
  }
EJK_DEVICE void multiply_strip(FLOATS (*sum)[TN], int depth, EJK_LOCAL_PTR const float* b, A_ARGUMENT) {
  MULTIPLY(SOME(b + q * STRIP + v * WIDTH))
}
EJK_DEVICE void multiply_as_it_lies(FLOATS (*sum)[TN], int depth, __global const B* b, int n, A_ARGUMENT) {
  MULTIPLY(SOME_OF_B(b + (size_t)q * n + v * WIDTH))
}

EJK_DEVICE void pack_a(EJK_LOCAL_PTR float* to, __global const A* a, int m, int k, int rows, int depth) {
  const int whole_tiles = (rows + TM - 1) / TM * TM;
  for (int r = 0; r < whole_tiles; ++r) {
    __global const A* from = a + (size_t)min(r, rows - 1) * A_ROW_STEP;
    EJK_LOCAL_PTR float* line = to + r * A_LINE;
    int q = 0;
#if !A_ACROSS
    for (; q + WIDTH <= depth; q += WIDTH) PUT_SOME(SOME_OF_A(from + q), line + q);
#endif
    for (; q < depth; ++q) line[q] = ONE_OF_A(from + (size_t)q * A_COLUMN_STEP);
  }
}

EJK_DEVICE void pack_b(EJK_LOCAL_PTR float* to, __global const B* b, int n, int k, int columns, int depth) {
#if B_ACROSS
  for (int j = 0; j < STRIP; ++j)
    for (int q = 0; q < depth; ++q) to[q * STRIP + j] = j < columns ? ONE_OF_B(b + (size_t)j * k + q) : 0.f;
#else
  for (int q = 0; q < depth; ++q) {
    __global const B* from = b + (size_t)q * n;
    if (columns >= STRIP) {
#pragma unroll
      for (int v = 0; v < TN; ++v)
        PUT_SOME(SOME_OF_B(from + v * WIDTH), to + q * STRIP + v * WIDTH);
    } else {
      for (int j = 0; j < STRIP; ++j) to[q * STRIP + j] = j < columns ? ONE_OF_B(from + j) : 0.f;
    }
  }
#endif
}

__kernel EJK_GROUP(1, 1, 1)
void matmul(PRODUCT) {
  __local float b_strip[BK * STRIP];
#if PACK_A
  __local float a_block[BM * A_LINE];
#endif
#if C_BF16
  __local float sums[BM * BN];
#endif
  Block block;
  if (!block_of(m, n, k, row_blocks, a_batch, b_batch, sizes, groups, &block)) return;
  const int rows = block.row_end - block.row, columns = block.column_end - block.column;
  __global C* c = all_c + block.c + (size_t)block.row * n + block.column;
  int q0 = 0;
  do {
    const int depth = min(block.depth - q0, BK), at = block.start + q0;
    __global const A* a =
        all_a + block.a + (size_t)block.row * A_ROW_STEP + (size_t)at * A_COLUMN_STEP;
    __global const B* b =
        all_b + block.b + (size_t)at * B_ROW_STEP + (size_t)block.column * B_COLUMN_STEP;
#if PACK_A
    pack_a(a_block, a, m, k, rows, depth);
#endif
    for (int j = 0; j < columns; j += STRIP) {
      __global const B* b_here = b + (size_t)j * B_COLUMN_STEP;
      const bool whole_strip = j + STRIP <= columns;
      if (PACK_B || !whole_strip) pack_b(b_strip, b_here, n, k, columns - j, depth);
      for (int i = 0; i < rows; i += TM) {
        FLOATS sum[TM][TN];
#pragma unroll
        for (int r = 0; r < TM; ++r)
#pragma unroll
          for (int v = 0; v < TN; ++v) sum[r][v] = (FLOATS)(0.f);
#if PACK_A
#define A_HERE a_block + i * A_LINE
#elif A_ACROSS
#define A_HERE a + i, m, rows - i - 1
#else
        __global const A* lines[TM];
#pragma unroll
        for (int r = 0; r < TM; ++r) lines[r] = a + (size_t)min(i + r, rows - 1) * k;
#define A_HERE lines
#endif
        if (PACK_B || !whole_strip) multiply_strip(sum, depth, b_strip, A_HERE);
        else multiply_as_it_lies(sum, depth, b_here, n, A_HERE);

#if C_BF16
#pragma unroll
        for (int r = 0; r < TM; ++r)
#pragma unroll
          for (int v = 0; v < TN; ++v) {
            EJK_LOCAL_PTR float* to = sums + (i + r) * BN + j + v * WIDTH;
            if (q0 > 0) sum[r][v] += SOME(to);
            PUT_SOME(sum[r][v], to);
          }
#else
        __global C* to = c + (size_t)i * n + j;
        if (whole_strip && i + TM <= rows) {
#pragma unroll
          for (int r = 0; r < TM; ++r)
#pragma unroll
            for (int v = 0; v < TN; ++v) {
              if (q0 > 0) sum[r][v] += SOME(to + (size_t)r * n + v * WIDTH);
#if BIAS
              else sum[r][v] += SOME_OF_A(bias + block.column + j + v * WIDTH);
#endif
              PUT_SOME(sum[r][v], to + (size_t)r * n + v * WIDTH);
            }
        } else {
          float part[TM * STRIP];
#pragma unroll
          for (int r = 0; r < TM; ++r)
#pragma unroll
            for (int v = 0; v < TN; ++v) PUT_SOME(sum[r][v], part + r * STRIP + v * WIDTH);
          for (int r = 0; r < min(rows - i, TM); ++r)
            for (int v = 0; v < min(columns - j, STRIP); ++v) {
              __global C* one = to + (size_t)r * n + v;
              one[0] = part[r * STRIP + v] + (q0 > 0 ? one[0] : bias_of(bias, block.column + j + v));
            }
        }
#endif
      }
    }
    q0 += BK;
  } while (q0 < block.depth);
#if C_BF16
  for (int i = 0; i < rows; ++i)
    for (int j = 0; j < columns; ++j)
      PUT_C(sums[i * BN + j] + bias_of(bias, block.column + j), c + (size_t)i * n + j);
#endif
}

#else
// ---- groups whose items share the parts of a and b in local memory; each makes TM x TN elements

#define ITEMS_X (BN / TN)
#define ITEMS_Y (BM / TM)
#define ITEMS (ITEMS_X * ITEMS_Y)
#define A_LINE (BM + PAD)
#define B_LINE (BN + PAD)
#define A_PART (BK * A_LINE)
#define B_PART (BK * B_LINE)
// Steps along the depth that are unrolled: enough to do at once, and not too much to compile.
#define AT_ONCE (TM * TN >= 32 ? 2 : 8)
// Columns of an item that lie side by side.
#define BESIDE (TN % 4 == 0 ? 4 : TN % 2 == 0 ? 2 : 1)

FETCH(fetch_a, float, A, ONE_OF_A, SOME_OF_A)
FETCH(fetch_b, float, B, ONE_OF_B, SOME_OF_B)
// Puts them where to[q][place] is read, q along the depth.
EJK_DEVICE void keep(EJK_LOCAL_PTR float* to, int to_line, const float* numbers, int count, int item, int length,
                     bool along) {
#pragma unroll
  for (int e = 0; e < count; ++e) {
    const int at = (item + e / WIDTH * ITEMS) * WIDTH + e % WIDTH, line = at / length, place = at % length;
    to[along ? place * to_line + line : line * to_line + place] = numbers[e];
  }
}

__kernel EJK_GROUP(ITEMS_X, ITEMS_Y, 1)
void matmul(PRODUCT) {
  __local float a_part[STAGES * A_PART];
  __local float b_part[STAGES * B_PART];
  Block block;
  if (!block_of(m, n, k, row_blocks, a_batch, b_batch, sizes, groups, &block)) return;
  const int x = (int)get_local_id(0), y = (int)get_local_id(1), item = y * ITEMS_X + x;
  const int rows = block.row_end - block.row, columns = block.column_end - block.column;
  __global const A* a = all_a + block.a + (size_t)block.row * A_ROW_STEP + (size_t)block.start * A_COLUMN_STEP;
  __global const B* b =
      all_b + block.b + (size_t)block.start * B_ROW_STEP + (size_t)block.column * B_COLUMN_STEP;

  float a_next[A_NUMBERS], b_next[B_NUMBERS];
  float sum[TM][TN];
#pragma unroll
  for (int i = 0; i < TM; ++i)
#pragma unroll
    for (int j = 0; j < TN; ++j) sum[i][j] = 0.f;

  EACH_PART {
    PART_IS_THERE
    EJK_LOCAL_PTR const float* a_line = a_part + stage * A_PART + y * TM;
    EJK_LOCAL_PTR const float* b_line = b_part + stage * B_PART + x * BESIDE;
#pragma unroll AT_ONCE
    for (int q = 0; q < BK; ++q) {
      float a_here[TM], b_here[TN];
#pragma unroll
      for (int i = 0; i < TM; ++i) a_here[i] = a_line[q * A_LINE + i];
#pragma unroll
      for (int j = 0; j < TN; ++j) b_here[j] = b_line[q * B_LINE + j / BESIDE * BESIDE * ITEMS_X + j % BESIDE];
#pragma unroll
      for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN; ++j) sum[i][j] = fma(a_here[i], b_here[j], sum[i][j]);
    }
  }
#pragma unroll
  for (int i = 0; i < TM; ++i)
#pragma unroll
    for (int j = 0; j < TN; ++j) {
      const int row = y * TM + i, column = (j / BESIDE * ITEMS_X + x) * BESIDE + j % BESIDE;
      PUT_SUM(sum[i][j], row, column)
    }
}
#endif
