// SPDX-License-Identifier: Apache-2.0
// exp(scale x) / sum(exp(scale x)) for each row.
//
// Exponentials are kept in registers, or where the output goes; bfloat16 would round them there, and they
// are computed again instead.

#define BEYOND (-INFINITY)
#define FIND_MOST(part, i, c, n) most[part] = fmax(most[part], READ(i, c, n));
#define EXPONENTIAL(i, c, n) fast_exp((ROW(i, c, n) - top) * scale)
#if KEPT
#define ADD_EXPONENTIALS(part, i, c, n)       \
  {                                           \
    kept[i] = EXPONENTIAL(i, c, n);           \
    sums[part] += kept[i];                    \
  }
#define WRITE(part, i, c, n) store(kept[i] * factor, out_row + (c), n);
#elif BF16
#define ADD_EXPONENTIALS(part, i, c, n) sums[part] += EXPONENTIAL(i, c, n);
#define WRITE(part, i, c, n) store(EXPONENTIAL(i, c, n) * factor, out_row + (c), n);
#else
#define ADD_EXPONENTIALS(part, i, c, n)                       \
  {                                                           \
    const FLOATS e = EXPONENTIAL(i, c, n);                    \
    store(e, out_row + (c), n);                               \
    sums[part] += e;                                          \
  }
#define WRITE(part, i, c, n) store(load(out_row + (c), n, 0.f) * factor, out_row + (c), n);
#endif

#if !GRADIENT
__kernel EJK_GROUP(GROUP, 1, 1)
void softmax(int rows, int columns, float scale, __global const Element* x, __global Element* out) {
  EACH_ROW {
    __global const Element* x_row = ROW_OF(x);
    __global Element* out_row = ROW_OF(out);
    ROW_REGISTERS
    FOUR_PARTS(most, -INFINITY)
    EACH_VECTOR(FIND_MOST)
    const float top = group_max(MAX_OF_PARTS(most), room);
    FOUR_PARTS(sums, 0.f)
    EACH_VECTOR(ADD_EXPONENTIALS)
    const float factor = 1.f / group_sum(SUM_OF_PARTS(sums), room);
    EACH_VECTOR(WRITE)
  }
}

#else
// dx = scale y (dy - sum(dy y)).
#define ADD_PRODUCTS(part, i, c, n) \
  products[part] = fma(OTHER(dy_row, c, n), OTHER(y_row, c, n), products[part]);
#define WRITE_DX(part, i, c, n) \
  store(OTHER(y_row, c, n) * scale * (OTHER(dy_row, c, n) - total), dx_row + (c), n);

__kernel EJK_GROUP(GROUP, 1, 1)
void softmax_dx(int rows, int columns, float scale, __global const Element* restrict dy,
                __global const Element* restrict y, __global Element* restrict dx) {
  EACH_ROW {
    __global const Element* dy_row = ROW_OF(dy);
    __global const Element* y_row = ROW_OF(y);
    __global Element* dx_row = ROW_OF(dx);
    FOUR_PARTS(products, 0.f)
    EACH_VECTOR(ADD_PRODUCTS)
    const float total = group_sum(SUM_OF_PARTS(products), room);
    EACH_VECTOR(WRITE_DX)
  }
}
#endif
