// SPDX-License-Identifier: Apache-2.0
// x / sqrt(mean(x^2) + eps) * weight for each row. WEIGHT: whether there is one. RESIDUALS: whether the
// factor of each row is written to `scales`.

#define BEYOND 0.f
#define SUM_SQUARES(part, i, c, n)             \
  {                                            \
    const FLOATS v = READ(i, c, n) * down;     \
    squares[part] = fma(v, v, squares[part]);  \
  }
#define WRITE(part, i, c, n) store(WEIGHTED(ROW(i, c, n) * down * scale, c, n), out_row + (c), n);

#if !GRADIENT
__kernel EJK_GROUP(GROUP, 1, 1)
void rms_norm(int rows, int columns, float eps, __global const Element* x,
              __global const Element* restrict weight, __global Element* out,
              __global float* restrict scales) {
  EACH_ROW {
    __global const Element* x_row = ROW_OF(x);
    __global Element* out_row = ROW_OF(out);
    ROW_REGISTERS
    float down = 1.f, scale;
    for (int time = 0;; ++time) {
      FOUR_PARTS(squares, 0.f)
      EACH_VECTOR(SUM_SQUARES)
      const float mean = group_sum(SUM_OF_PARTS(squares), room) / columns;
      scale = 1.f / sqrt(mean + eps * down * down);
      LEAVE_IN_RANGE(time, mean)
    }
    EACH_VECTOR(WRITE)
#if RESIDUALS
    if (item == 0) scales[row] = down * scale;
#endif
  }
}

#else
// With g = dy weight and x^ = x scale: dx = scale (g - x^ mean(g x^)), dweight = sum of dy x^.
#define G(c, n) WEIGHTED(OTHER(dy_row, c, n), c, n)
#define ADD_PRODUCTS(part, i, c, n) \
  products[part] = fma(G(c, n), OTHER(x_row, c, n) * scale, products[part]);
#define WRITE_DX(part, i, c, n) \
  store((G(c, n) - OTHER(x_row, c, n) * scale * mean) * scale, dx_row + (c), n);

__kernel EJK_GROUP(GROUP, 1, 1)
void rms_norm_dx(int rows, int columns, __global const Element* restrict dy,
                 __global const Element* restrict x, __global const Element* restrict weight,
                 __global const float* restrict scales, __global Element* restrict dx) {
  EACH_ROW {
    __global const Element* dy_row = ROW_OF(dy);
    __global const Element* x_row = ROW_OF(x);
    __global Element* dx_row = ROW_OF(dx);
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
