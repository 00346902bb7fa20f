// SPDX-License-Identifier: Apache-2.0
// Which part of c = a b + bias a group makes: a block of BM x BN elements, from parts of a and b that are BK deep; how
// items that share local memory read these parts, and write the block.
//
// Macros beside those of the config: A_ACROSS and B_ACROSS (they lie transposed), BIAS (there is one), GROUPED; A_BF16,
// B_BF16, C_BF16: elements are bfloat16, else float; a bias has those of a. Sizes are ints, products of them size_t.

// ---- elements

#if A_BF16
typedef ushort A;
#define ONE_OF_A(from) from_bf16((from)[0])
#else
typedef float A;
#define ONE_OF_A(from) (from)[0]
#endif
#if B_BF16
typedef ushort B;
#define ONE_OF_B(from) from_bf16((from)[0])
#else
typedef float B;
#define ONE_OF_B(from) (from)[0]
#endif
#if C_BF16
typedef ushort C;
#define PUT_C(x, to) (to)[0] = to_bf16(x)
#else
typedef float C;
#define PUT_C(x, to) (to)[0] = (x)
#endif

// WIDTH of them side by side.
#if WIDTH == 1
#define SOME(from) (from)[0]
#define PUT_SOME(v, to) (to)[0] = (v)
#else
#define SOME(from) EJK_JOIN(vload, WIDTH)(0, from)
#define PUT_SOME(v, to) EJK_JOIN(vstore, WIDTH)(v, 0, to)
#endif

EJK_DEVICE float bias_of(__global const A* bias, int column) {
#if BIAS
  return ONE_OF_A(bias + column);
#else
  return 0.f;
#endif
}

// ---- blocks

#define PRODUCT                                                                                                     \
  int m, int n, int k, int row_blocks, int a_batch, int b_batch, int groups, __global const A *restrict all_a,      \
      __global const B *restrict all_b, __global const A *restrict bias, __global const int *restrict sizes,        \
      __global C *restrict all_c

// From one row to the next, and from one column to the next.
#define A_ROW_STEP (A_ACROSS ? 1 : k)
#define A_COLUMN_STEP (A_ACROSS ? m : 1)
#define B_ROW_STEP (B_ACROSS ? 1 : n)
#define B_COLUMN_STEP (B_ACROSS ? k : 1)

// Rows and columns from the first up to the end, of the matrices at these places.
typedef struct {
  int row, row_end, column, column_end;
  int depth;     // of the product
  int start;     // along the depth: of columns of a and rows of b, which lie k apart
  size_t b;      // elements before its b
  size_t c;      // elements before its c, and before its a, if it is of a batch
  size_t a;
} Block;

EJK_DEVICE int size_of_group(__global const int* sizes, int group, int left) {
  return min(max(sizes[group], 0), left);
}

// GROUPED 0: one product per matrix of a batch. 1: rows of a and c belong to groups, each with a b of its own; blocks
// are counted through the groups and the rows behind them, for which there is depth 0. 2: the depth belongs to groups,
// each with a c of its own. Groups lie in one line, through the blocks of rows first, then of columns, then matrices.
// False: nothing is left to do.
EJK_DEVICE bool block_of(int m, int n, int k, int row_blocks, int a_batch, int b_batch, __global const int* sizes,
                         int groups, Block* block) {
  const int column_blocks = (n + BN - 1) / BN;
  const int by_row = (int)get_group_id(0) % row_blocks, others = (int)get_group_id(0) / row_blocks;
  const int by_column = others % column_blocks, matrix = others / column_blocks;
  block->column = by_column * BN;
  block->column_end = min(n, block->column + BN);
  block->row = by_row * BM;
  block->row_end = min(m, block->row + BM);
  block->depth = k;
  block->start = 0;
  block->a = (size_t)(a_batch ? matrix : 0) * m * k;
  block->b = (size_t)(b_batch ? matrix : 0) * k * n;
  block->c = (size_t)matrix * m * n;
#if GROUPED == 1
  int first = 0, blocks = by_row;
  for (int g = 0; g <= groups; ++g) {
    const int rows = g < groups ? size_of_group(sizes, g, m - first) : m - first;
    const int blocks_of_group = (rows + BM - 1) / BM;
    if (blocks < blocks_of_group) {
      block->row = first + blocks * BM;
      block->row_end = min(first + rows, block->row + BM);
      block->b = (size_t)g * k * n;
      if (g == groups) block->depth = 0, block->b = 0;
      return true;
    }
    blocks -= blocks_of_group;
    first += rows;
  }
  return false;
#elif GROUPED == 2
  int first = 0;
  for (int g = 0; g < matrix; ++g) first += size_of_group(sizes, g, k - first);
  block->start = first;
  block->depth = size_of_group(sizes, matrix, k - first);
  block->a = 0;
  block->b = 0;
  return true;
#else
  return true;
#endif
}

// ---- blocks of which items share the parts of a and b in local memory: ITEMS of them, of which `item` is one

#define A_NUMBERS (BM * BK / ITEMS)
#define B_NUMBERS (BN * BK / ITEMS)

// A vector's numbers in registers: CUDA would take memory for an array that vstore writes to.
#if defined(EJK_CUDA) && WIDTH > 1
#define SPREAD(v, to)                                                  \
  const auto all = (v);                                                \
  _Pragma("unroll") for (int w = 0; w < WIDTH; ++w)(to)[w] = all.s[w]
#else
#define SPREAD PUT_SOME
#endif
// An item's share of a part of `lines` x `length` elements X, WIDTH of which lie side by side in memory. Those that are
// not there are zeros.
#define FETCH(name, Number, X, ONE_OF_X, SOME_OF_X)                                                          \
  EJK_DEVICE void name(Number* numbers, int count, int item, __global const X* from, int stride, int length, \
                       int lines_left, int length_left) {                                                    \
    _Pragma("unroll") for (int e = 0; e < count / WIDTH; ++e) {                                              \
      const int at = (item + e * ITEMS) * WIDTH, line = at / length, first = at % length;                    \
      __global const X* here = from + (size_t)line * stride + first;                                         \
      if (line < lines_left && first + WIDTH <= length_left) {                                               \
        SPREAD(SOME_OF_X(here), numbers + e * WIDTH);                                                        \
      } else {                                                                                               \
        _Pragma("unroll") for (int w = 0; w < WIDTH; ++w) numbers[e * WIDTH + w] =                           \
            line < lines_left && first + w < length_left ? ONE_OF_X(here + w) : (Number)0;                   \
      }                                                                                                      \
    }                                                                                                        \
  }

// FETCH_A(q) and FETCH_B(q) read a part that begins at q into a_next and b_next; KEEP_A(stage) and KEEP_B(stage) put
// that into the parts of local memory with `keep`. Along: the depth is what lies side by side in memory.
#if A_ACROSS
#define FETCH_A(q) fetch_a(a_next, A_NUMBERS, item, a + (size_t)(q) * m, m, BM, block.depth - (q), rows)
#define KEEP_A(stage) keep(a_part + (stage) * A_PART, A_LINE, a_next, A_NUMBERS, item, BM, false)
#else
#define FETCH_A(q) fetch_a(a_next, A_NUMBERS, item, a + (q), k, BK, rows, block.depth - (q))
#define KEEP_A(stage) keep(a_part + (stage) * A_PART, A_LINE, a_next, A_NUMBERS, item, BK, true)
#endif
#if B_ACROSS
#define FETCH_B(q) fetch_b(b_next, B_NUMBERS, item, b + (q), k, BK, columns, block.depth - (q))
#define KEEP_B(stage) keep(b_part + (stage) * B_PART, B_LINE, b_next, B_NUMBERS, item, BK, true)
#else
#define FETCH_B(q) fetch_b(b_next, B_NUMBERS, item, b + (size_t)(q) * n, n, BN, block.depth - (q), columns)
#define KEEP_B(stage) keep(b_part + (stage) * B_PART, B_LINE, b_next, B_NUMBERS, item, BN, false)
#endif

// EACH_PART { PART_IS_THERE ... }: one part after the other, each read while the one before it is multiplied. With one
// stage, what is there must have been read; with two it was, before the barrier of the last part.
#define EACH_PART \
  FETCH_A(0);     \
  FETCH_B(0);     \
  for (int begin = 0, stage = 0; begin < block.depth; begin += BK, stage = (stage + 1) % STAGES)
#define PART_IS_THERE                                         \
  if (STAGES == 1 && begin > 0) barrier(CLK_LOCAL_MEM_FENCE); \
  KEEP_A(stage);                                              \
  KEEP_B(stage);                                              \
  barrier(CLK_LOCAL_MEM_FENCE);                               \
  if (begin + BK < block.depth) {                             \
    FETCH_A(begin + BK);                                      \
    FETCH_B(begin + BK);                                      \
  }

// A sum becomes an element of c, if there is one.
#define PUT_SUM(sum, row, column)                                           \
  if (row < rows && column < columns)                                       \
    PUT_C((sum) + bias_of(bias, block.column + column),                     \
          all_c + block.c + (size_t)(block.row + row) * n + block.column + column);
