// SPDX-License-Identifier: Apache-2.0
// One row among the items of a group, for operations over rows: item i has its vectors i, i + GROUP, ...
//
// Macros of a program besides those of device.cl: ROWS (rows of a group, one after the other), KEPT
// (vectors that an item keeps in registers between its walks over a row; 0: it reads them again).
//
// A walk is EACH_VECTOR(STEP_OF_IT), where STEP_OF_IT(part, i, c, n) is a statement for this item's
// vector number i, which begins at column c and has n columns. Statements that add up do so in one of
// four parts, which do not wait for each other. In them READ(i, c, n) reads the row `x_row`, ROW(i, c, n)
// gives what was read in a walk before. BEYOND, which the source defines, is the value of elements
// behind the end of the row.

// A kernel's body is EACH_ROW { ... }, for the rows of its group, with `room` for the group's sums; in it
// ROW_OF(array) is where the row of an array of rows begins.

#define EACH_ROW                                                                \
  GROUP_ROOM(room);                                                             \
  const int item = (int)get_local_id(0);                                        \
  const int begin = (int)get_group_id(0) * ROWS, end = min(begin + ROWS, rows); \
  for (int row = begin; row < end; ++row)
#define ROW_OF(array) ((array) + (size_t)row * columns)

#define ROW_STEP (GROUP * WIDTH)

#if KEPT
#define ROW_REGISTERS FLOATS kept[KEPT];
#define READ(i, c, n) (kept[i] = load(x_row + (c), n, BEYOND))
#define ROW(i, c, n) kept[i]
#define EACH_VECTOR(DO)                                       \
  _Pragma("unroll") for (int i = 0; i < KEPT; ++i) {          \
    const int c = (item + i * GROUP) * WIDTH, n = min(WIDTH, columns - c); \
    if (n > 0) DO(i % 4, i, c, n)                             \
  }
#else
#define ROW_REGISTERS
#define READ(i, c, n) load(x_row + (c), n, BEYOND)
#define ROW(i, c, n) READ(i, c, n)
#if GROUP > 1
#define EACH_VECTOR(DO)                                       \
  for (int c = item * WIDTH; c < columns; c += ROW_STEP) {    \
    const int n = min(WIDTH, columns - c);                    \
    DO(0, 0, c, n)                                            \
  }
#else
#define EACH_VECTOR(DO)                                       \
  {                                                           \
    int c = 0;                                                \
    for (; c + 4 * WIDTH <= columns; c += 4 * WIDTH) {        \
      DO(0, 0, c, WIDTH)                                      \
      DO(1, 0, c + WIDTH, WIDTH)                              \
      DO(2, 0, c + 2 * WIDTH, WIDTH)                          \
      DO(3, 0, c + 3 * WIDTH, WIDTH)                          \
    }                                                         \
    for (; c < columns; c += WIDTH) {                         \
      const int n = min(WIDTH, columns - c);                  \
      DO(0, 0, c, n)                                          \
    }                                                         \
  }
#endif
#endif

#define FOUR_PARTS(name, value) \
  FLOATS name[4];               \
  SET_PARTS(name, value)
#define SET_PARTS(name, value) name[0] = name[1] = name[2] = name[3] = (FLOATS)(value);
#define SUM_OF_PARTS(name) sum_of((name[0] + name[1]) + (name[2] + name[3]))
#define MAX_OF_PARTS(name) max_of(fmax(fmax(name[0], name[1]), fmax(name[2], name[3])))

// Vectors times those of `weight`, if there is one.
#if WEIGHT
#define WEIGHTED(v, c, n) ((v) * load(weight + (c), n, 0.f))
#else
#define WEIGHTED(v, c, n) (v)
#endif

// ---- gradients: GRADIENT is 1 in programs of them, so that others do not compile them

// What of a row in another array than x stands at its columns c to c + n; 0 behind its end.
#define OTHER(row_of, c, n) load(row_of + (c), n, 0.f)

// Sums over rows, for gradients of what has one number per column: a kernel `name` that adds up
// TERM(row, c, n), vectors, for chunks of the rows, into sums[chunk][padded columns]. The second kernel
// adds up the chunks, in their order. Which rows are in a chunk depends on their number alone.
#define ROW_CHUNK_LOOP(TERM)                                                              \
  const int c = ((int)get_group_id(0) * GROUP + (int)get_local_id(0)) * WIDTH;            \
  const int chunk = (int)get_group_id(1), n = min(WIDTH, columns - c);                    \
  if (n <= 0) return;                                                                     \
  const int end = min((chunk + 1) * chunk_rows, rows);                                    \
  FLOATS sum = (FLOATS)(0.f);                                                             \
  for (int row = chunk * chunk_rows; row < end; ++row) {                                  \
    const size_t at = (size_t)row * columns + c;                                          \
    sum += TERM;                                                                          \
  }                                                                                       \
  store_floats(sum, sums + (size_t)chunk * padded_columns(columns) + c);
EJK_DEVICE int padded_columns(int columns) { return (columns + WIDTH - 1) / WIDTH * WIDTH; }
#if WIDTH == 1
EJK_DEVICE void store_floats(float v, __global float* to) { to[0] = v; }
EJK_DEVICE float load_floats(__global const float* from) { return from[0]; }
#else
EJK_DEVICE void store_floats(FLOATS v, __global float* to) { EJK_JOIN(vstore, WIDTH)(v, 0, to); }
EJK_DEVICE FLOATS load_floats(__global const float* from) { return EJK_JOIN(vload, WIDTH)(0, from); }
#endif

#if GRADIENT
__kernel EJK_GROUP(GROUP, 1, 1)
void add_chunks(int chunks, int columns, __global const float* restrict sums,
                __global Element* restrict total) {
  const int c = ((int)get_group_id(0) * GROUP + (int)get_local_id(0)) * WIDTH;
  const int n = min(WIDTH, columns - c);
  if (n <= 0) return;
  FLOATS sum = (FLOATS)(0.f);
  for (int chunk = 0; chunk < chunks; ++chunk)
    sum += load_floats(sums + (size_t)chunk * padded_columns(columns) + c);
  store(sum, total + c, n);
}
#endif

// Where squares leave the range of float, the row is multiplied by a power of two that brings its largest
// number near 1. LEAVE_IN_RANGE, at the end of the body of an endless loop, leaves it with a mean of squares that
// is in that range; else `down` becomes the power, and the loop's second time is its last.
EJK_DEVICE float power_to_one(float largest) {
  const int exponent = (int)((as_uint(largest) >> 23) & 255u);
  return as_float((uint)max(254 - exponent, 1) << 23);
}
#define FIND_LARGEST(part, i, c, n) largest[part] = fmax(largest[part], fabs(ROW(i, c, n)));
#define LEAVE_IN_RANGE(time, mean_square)                                                   \
  if ((time) == 1 || ((mean_square) <= FLT_MAX && (mean_square) + eps >= 1e-30f)) break;    \
  FOUR_PARTS(largest, 0.f)                                                                  \
  EACH_VECTOR(FIND_LARGEST)                                                                 \
  down = power_to_one(fmax(group_max(MAX_OF_PARTS(largest), room), sqrt(eps)));
