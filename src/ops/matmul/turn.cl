// SPDX-License-Identifier: Apache-2.0
// Transposes matrices: to[matrix, column, row] = from[matrix, row, column]. An item has EACH columns of a row, GROUP apart.
// Groups lie in one line, through the rows first, then the parts of a row, then the matrices. TWO_BYTES: elements of two
// bytes, else of four.

#if TWO_BYTES
typedef ushort Bits;
#else
typedef uint Bits;
#endif

__kernel EJK_GROUP(GROUP, 1, 1)
void turn(int rows, int columns, __global const Bits* restrict from, __global Bits* restrict to) {
  const int row = (int)get_group_id(0) % rows, others = (int)get_group_id(0) / rows;
  const int parts = (columns + GROUP * EACH - 1) / (GROUP * EACH);
  const size_t matrix = (size_t)(others / parts) * rows * columns;
  const int first = others % parts * GROUP * EACH + (int)get_local_id(0);
  for (int i = 0; i < EACH; ++i) {
    const int column = first + i * GROUP;
    if (column < columns)
      to[matrix + (size_t)column * rows + row] = from[matrix + (size_t)row * columns + column];
  }
}
