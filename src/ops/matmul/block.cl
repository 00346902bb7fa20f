// SPDX-License-Identifier: Apache-2.0
// Which part of c = a b + bias a group makes: a block of BM x BN elements, from parts of a and b that are BK deep.
//
// Macros beside those of the config: A_ACROSS and B_ACROSS (they lie transposed), BIAS (there is one), GROUPED. Sizes
// are ints, products of them size_t.

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
// each with a c of its own. False: nothing is left to do.
EJK_DEVICE bool block_of(int m, int n, int k, int a_batch, int b_batch, __global const int* sizes, int groups,
                         Block* block) {
  const int by_row = (int)get_group_id(0), by_column = (int)get_group_id(1), matrix = (int)get_group_id(2);
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
