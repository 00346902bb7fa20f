// SPDX-License-Identifier: Apache-2.0
// (x - mean) / sqrt(var + eps) * weight + bias for each row. WEIGHT, BIAS: whether there is one.
// RESIDUALS: whether mean, rest of it and factor of each row are written to `moments`.

#define BEYOND 0.f
#define ADD_UP(part, i, c, n) sums[part] += READ(i, c, n) * down;
// The mean of the differences from a rounded mean is what that lacks. Beyond the row they are not 0.
#define ADD_DIFFERENCES(part, i, c, n)                             \
  {                                                                \
    const FLOATS d = within(ROW(i, c, n) * down - mean, n);        \
    sums[part] += d;                                               \
    squares[part] = fma(d, d, squares[part]);                      \
  }
#if BIAS
#define BIASED(v, c, n) ((v) + load(bias + (c), n, 0.f))
#else
#define BIASED(v, c, n) (v)
#endif
#define NORMAL(i, c, n) ((ROW(i, c, n) * down - mean - rest) * scale)
#define WRITE(part, i, c, n) store(BIASED(WEIGHTED(NORMAL(i, c, n), c, n), c, n), out_row + (c), n);

#if !GRADIENT
__kernel EJK_GROUP(GROUP, 1, 1)
void layer_norm(int rows, int columns, float eps, __global const Element* x,
                __global const Element* restrict weight, __global const Element* restrict bias,
                __global Element* out, __global float* restrict moments) {
  EACH_ROW {
    __global const Element* x_row = ROW_OF(x);
    __global Element* out_row = ROW_OF(out);
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
      LEAVE_IN_RANGE(time, variance)
    }
    EACH_VECTOR(WRITE)
#if RESIDUALS
    if (item == 0) {
      moments[3 * (size_t)row] = mean / down;
      moments[3 * (size_t)row + 1] = rest / down;
      moments[3 * (size_t)row + 2] = scale * down;
    }
#endif
  }
}

#else
// With g = dy weight and x^ = (x - mean) scale: dx = scale (g - mean(g) - x^ mean(g x^)), dweight = sum of
// dy x^, dbias = sum of dy.
#define MEAN_OF(row) moments[3 * (size_t)(row)]
#define REST_OF(row) moments[3 * (size_t)(row) + 1]
#define SCALE_OF(row) moments[3 * (size_t)(row) + 2]
#define G(c, n) WEIGHTED(OTHER(dy_row, c, n), c, n)
#define NORMAL_X(c, n) ((OTHER(x_row, c, n) - mean - rest) * scale)
#define ADD_PRODUCTS(part, i, c, n)                          \
  {                                                          \
    const FLOATS g = G(c, n); /* 0 behind the end */         \
    sums[part] += g;                                         \
    products[part] = fma(g, NORMAL_X(c, n), products[part]); \
  }
#define WRITE_DX(part, i, c, n) \
  store((G(c, n) - mean_g - NORMAL_X(c, n) * mean_gx) * scale, dx_row + (c), n);

__kernel EJK_GROUP(GROUP, 1, 1)
void layer_norm_dx(int rows, int columns, __global const Element* restrict dy,
                   __global const Element* restrict x, __global const Element* restrict weight,
                   __global const float* restrict moments, __global Element* restrict dx) {
  EACH_ROW {
    __global const Element* dy_row = ROW_OF(dy);
    __global const Element* x_row = ROW_OF(x);
    __global Element* dx_row = ROW_OF(dx);
    const float mean = MEAN_OF(row), rest = REST_OF(row), scale = SCALE_OF(row);
    FOUR_PARTS(sums, 0.f)
    FOUR_PARTS(products, 0.f)
    EACH_VECTOR(ADD_PRODUCTS)
    const float mean_g = group_sum(SUM_OF_PARTS(sums), room) / columns;
    const float mean_gx = group_sum(SUM_OF_PARTS(products), room) / columns;
    EACH_VECTOR(WRITE_DX)
  }
}

__kernel EJK_GROUP(GROUP, 1, 1)
void layer_norm_dweight(int rows, int columns, int chunk_rows, __global const Element* restrict dy,
                        __global const Element* restrict x, __global const float* restrict moments,
                        __global float* restrict sums) {
  ROW_CHUNK_LOOP(load(dy + at, n, 0.f) * (load(x + at, n, 0.f) - MEAN_OF(row) - REST_OF(row)) * SCALE_OF(row))
}

__kernel EJK_GROUP(GROUP, 1, 1)
void layer_norm_dbias(int rows, int columns, int chunk_rows, __global const Element* restrict dy,
                      __global float* restrict sums) {
  ROW_CHUNK_LOOP(load(dy + at, n, 0.f))
}
#endif
