// SPDX-License-Identifier: Apache-2.0
// (x - mean) / sqrt(var + eps) * weight + bias for each row. WEIGHT, BIAS: whether there is one.

#define BEYOND 0.f
#define ADD_UP(part, i, c, n) sums[part] += READ(i, c, n) * down;
// The mean of the differences from a rounded mean is what that lacks. Beyond the row they are not 0.
#define ADD_DIFFERENCES(part, i, c, n)                             \
  {                                                                \
    const FLOATS d = within(ROW(i, c, n) * down - mean, n);        \
    sums[part] += d;                                               \
    squares[part] = fma(d, d, squares[part]);                      \
  }
#define FIND_LARGEST(part, i, c, n) largest[part] = fmax(largest[part], fabs(ROW(i, c, n)));
#if WEIGHT
#define WEIGHTED(v, c, n) ((v) * load(weight + (c), n, 0.f))
#else
#define WEIGHTED(v, c, n) (v)
#endif
#if BIAS
#define BIASED(v, c, n) ((v) + load(bias + (c), n, 0.f))
#else
#define BIASED(v, c, n) (v)
#endif
#define NORMAL(i, c, n) ((ROW(i, c, n) * down - mean - rest) * scale)
#define WRITE(part, i, c, n) store(BIASED(WEIGHTED(NORMAL(i, c, n), c, n), c, n), out_row + (c), n);

__kernel EJK_GROUP(GROUP, 1, 1)
void layer_norm(int rows, int columns, float eps, __global const Element* x,
                __global const Element* restrict weight, __global const Element* restrict bias,
                __global Element* out) {
  GROUP_ROOM(room);
  const int item = (int)get_local_id(0);
  const int begin = (int)get_group_id(0) * ROWS, end = min(begin + ROWS, rows);
  for (int row = begin; row < end; ++row) {
    __global const Element* x_row = x + (size_t)row * columns;
    __global Element* out_row = out + (size_t)row * columns;
    ROW_REGISTERS
    float down = 1.f, mean, rest, scale;
    for (int time = 0;; ++time) {
      FOUR_PARTS(sums, 0.f)
      EACH_VECTOR(ADD_UP)
      mean = group_sum(SUM_OF_PARTS(sums), room) / columns;
      FOUR_PARTS(squares, 0.f)
      SET_PARTS(sums, 0.f)
      EACH_VECTOR(ADD_DIFFERENCES)
      rest = group_sum(SUM_OF_PARTS(sums), room) / columns;
      const float variance = group_sum(SUM_OF_PARTS(squares), room) / columns - rest * rest;
      scale = 1.f / sqrt(fmax(variance, 0.f) + eps * down * down);
      if (time == 1 || (variance <= FLT_MAX && variance + eps >= 1e-30f)) break;
      FOUR_PARTS(largest, 0.f)
      EACH_VECTOR(FIND_LARGEST)
      down = power_to_one(fmax(group_max(MAX_OF_PARTS(largest), room), sqrt(eps)));
    }
    EACH_VECTOR(WRITE)
  }
}
