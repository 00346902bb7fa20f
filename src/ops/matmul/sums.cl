// SPDX-License-Identifier: Apache-2.0
// Sums of rows: to[column] is the sum of from[row, column] over all rows. An item has COLUMNS of them, GROUP apart.
// FROM_BF16 and TO_BF16: elements are bfloat16, else float.

#if FROM_BF16
typedef ushort From;
#define NUMBER(x) from_bf16(x)
#else
typedef float From;
#define NUMBER(x) (x)
#endif
#if TO_BF16
typedef ushort To;
#define ROUNDED(x) to_bf16(x)
#else
typedef float To;
#define ROUNDED(x) (x)
#endif

__kernel EJK_GROUP(GROUP, 1, 1)
void sum_rows(int rows, int columns, __global const From* restrict from, __global To* restrict to) {
  const int first = (int)get_group_id(0) * GROUP * COLUMNS + (int)get_local_id(0);
  float sum[COLUMNS], lost[COLUMNS];
#pragma unroll
  for (int i = 0; i < COLUMNS; ++i) sum[i] = lost[i] = 0.f;
  for (int row = 0; row < rows; ++row)
#pragma unroll
    for (int i = 0; i < COLUMNS; ++i) {
      const int column = first + i * GROUP;
      if (column >= columns) continue;
      // What a sum loses by rounding is added to the next number: rows can be many.
      const float x = NUMBER(from[(size_t)row * columns + column]) - lost[i];
      const float next = sum[i] + x;
      lost[i] = (next - sum[i]) - x;
      sum[i] = next;
    }
#pragma unroll
  for (int i = 0; i < COLUMNS; ++i)
    if (first + i * GROUP < columns) to[first + i * GROUP] = ROUNDED(sum[i]);
}
