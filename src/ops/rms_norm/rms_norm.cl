// SPDX-License-Identifier: Apache-2.0
// x / sqrt(mean(x^2) + eps) * weight for each row. WEIGHT: whether there is one. RESIDUALS: whether the
// factor of each row is written to `scales`.

#define BEYOND 0.f
#define SUM_SQUARES(part, i, c, n)             \
  {                                            \
    const FLOATS v = READ(i, c, n) * down;     \
    squares[part] = fma(v, v, squares[part]);  \
  }
#define FIND_LARGEST(part, i, c, n) largest[part] = fmax(largest[part], fabs(ROW(i, c, n)));
#if WEIGHT
#define WRITE(part, i, c, n) \
  store(ROW(i, c, n) * down * scale * load(weight + (c), n, 0.f), out_row + (c), n);
#else
#define WRITE(part, i, c, n) store(ROW(i, c, n) * down * scale, out_row + (c), n);
#endif

#if !GRADIENT
__kernel EJK_GROUP(GROUP, 1, 1)
void rms_norm(int rows, int columns, float eps, __global const Element* x,
              __global const Element* restrict weight, __global Element* out,
              __global float* restrict scales) {
  GROUP_ROOM(room);
  const int item = (int)get_local_id(0);
  const int begin = (int)get_group_id(0) * ROWS, end = min(begin + ROWS, rows);
  for (int row = begin; row < end; ++row) {
    __global const Element* x_row = x + (size_t)row * columns;
    __global Element* out_row = out + (size_t)row * columns;
    ROW_REGISTERS
    float down = 1.f, scale;
    for (int time = 0;; ++time) {
      FOUR_PARTS(squares, 0.f)
      EACH_VECTOR(SUM_SQUARES)
      const float mean = group_sum(SUM_OF_PARTS(squares), room) / columns;
      scale = 1.f / sqrt(mean + eps * down * down);
      if (time == 1 || (mean <= FLT_MAX && mean + eps >= 1e-30f)) break;
      FOUR_PARTS(largest, 0.f)
      EACH_VECTOR(FIND_LARGEST)
      down = power_to_one(fmax(group_max(MAX_OF_PARTS(largest), room), sqrt(eps)));
    }
    EACH_VECTOR(WRITE)
#if RESIDUALS
    if (item == 0) scales[row] = down * scale;
#endif
  }
}

#else
// With g = dy weight and x^ = x scale: dx = scale (g - x^ mean(g x^)), dweight = sum of dy x^.
#if WEIGHT
#define G(c, n) (OTHER(dy_row, c, n) * OTHER(weight, c, n))
#else
#define G(c, n) OTHER(dy_row, c, n)
#endif
#define ADD_PRODUCTS(part, i, c, n) \
  products[part] = fma(G(c, n), OTHER(x_row, c, n) * scale, products[part]);
#define WRITE_DX(part, i, c, n) \
  store((G(c, n) - OTHER(x_row, c, n) * scale * mean) * scale, dx_row + (c), n);

__kernel EJK_GROUP(GROUP, 1, 1)
void rms_norm_dx(int rows, int columns, __global const Element* restrict dy,
                 __global const Element* restrict x, __global const Element* restrict weight,
                 __global const float* restrict scales, __global Element* restrict dx) {
  GROUP_ROOM(room);
  const int item = (int)get_local_id(0);
  const int begin = (int)get_group_id(0) * ROWS, end = min(begin + ROWS, rows);
  for (int row = begin; row < end; ++row) {
    __global const Element* dy_row = dy + (size_t)row * columns;
    __global const Element* x_row = x + (size_t)row * columns;
    __global Element* dx_row = dx + (size_t)row * columns;
    const float scale = scales[row];
    FOUR_PARTS(products, 0.f)
    EACH_VECTOR(ADD_PRODUCTS)
    const float mean = group_sum(SUM_OF_PARTS(products), room) / columns;
    EACH_VECTOR(WRITE_DX)
  }
}

__kernel EJK_GROUP(GROUP, 1, 1)
void rms_norm_dweight(int rows, int columns, int chunk_rows, __global const Element* restrict dy,
                      __global const Element* restrict x, __global const float* restrict scales,
                      __global float* restrict sums) {
  ROW_CHUNK_LOOP(load(dy + at, n, 0.f) * load(x + at, n, 0.f) * scales[row])
}
#endif
