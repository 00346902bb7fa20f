// SPDX-License-Identifier: Apache-2.0
// One query per sequence against a cache of keys and values [batch, position, head, DIM], plain or in pages.
//
// A group has HEADS queries that share keys, and one of `splits` parts of their sequence, BK positions at a time.
// Its items share the positions of keys, and the elements of values. Several parts are put together by
// decode_join.
//
// Macros of a program: DIM, BF16, WIDTH (from 2 on), GROUP (1: no local memory), HEADS, BK; CAPPED: logits have a
// cap; LENGTHS: sequences have lengths; PAGED: `table` says on which page each part of a sequence is.

#define FEW _Pragma("unroll 4") /* all of them at once would not stay in registers */
#define VECTORS ((DIM + WIDTH - 1) / WIDTH)
#define LAST (DIM - (VECTORS - 1) * WIDTH) /* elements of the last vector */
#define OWN ((VECTORS + GROUP - 1) / GROUP)
#if GROUP == 1
#define ROOM float
#define ROOM_PTR
#define SYNC
#else
#define ROOM __local float
#define ROOM_PTR EJK_LOCAL_PTR
#define SYNC barrier(CLK_LOCAL_MEM_FENCE);
#endif
#define VLOAD EJK_JOIN(vload, WIDTH)
#define VSTORE EJK_JOIN(vstore, WIDTH)

// Where a position lies, in rows of all heads; -1: it has no page.
#if PAGED
#define ROW_AT(position) paged_row(table + (size_t)batch * table_stride, position, page_size, pages)
EJK_DEVICE int paged_row(__global const int* table, int position, int page_size, int pages) {
  const int page = table[position / page_size];
  return page < 0 || page >= pages ? -1 : page * page_size + position % page_size;
}
#else
#define ROW_AT(position) (batch * positions + (position))
#endif

#define SIZES                                                                                             \
  int batches, int positions, int heads, int kv_heads, int splits, int left, float factor, float cap,     \
      __global const int* restrict lengths, int table_stride, int page_size, int pages,                   \
      __global const int* restrict table

__kernel EJK_GROUP(GROUP, 1, 1)
void decode(SIZES, __global const Element* restrict q, __global const Element* restrict k,
            __global const Element* restrict v, __global Element* restrict out, __global float* restrict part_sums,
            __global float* restrict part_stats) {
  ROOM room[HEADS * (VECTORS * WIDTH + BK)];
  ROOM_PTR float* queries = room;
  ROOM_PTR float* weights = room + HEADS * VECTORS * WIDTH;
  const int item = (int)get_local_id(0), shared = heads / kv_heads, head_blocks = (shared + HEADS - 1) / HEADS;
  int at = (int)get_group_id(0);
  const int split = at % splits;
  at /= splits;
  const int head_block = at % head_blocks * HEADS;
  at /= head_blocks;
  const int kv_head = at % kv_heads, batch = at / kv_heads;
  const int first_head = kv_head * shared + head_block, count_heads = min(HEADS, shared - head_block);
#if LENGTHS
  const int length = lengths[batch];
#else
  const int length = positions;
#endif
  // The part of what is seen that is this group's.
  const int begin = max(0, length - 1 - left), size = (length - begin + splits - 1) / splits;
  const int from = begin + split * size, to = min(length, from + size);

  for (int e = item; e < HEADS * VECTORS * WIDTH; e += GROUP) {
    const int h = e / (VECTORS * WIDTH), d = e % (VECTORS * WIDTH);
    queries[e] = h < count_heads && d < DIM ? load1(q + ((size_t)batch * heads + first_head + h) * DIM + d) * factor : 0.f;
  }
  SYNC
  float top[HEADS], total[HEADS], base[HEADS];
  FLOATS sums[HEADS][OWN];
  EACH(h, HEADS) {
    top[h] = -INFINITY, total[h] = 0.f;
    EACH(c, OWN) sums[h][c] = (FLOATS)(0.f);
  }

  for (int p = from; p < to; p += BK) {
    const int count = min(BK, to - p);
    for (int j = item; j < BK; j += GROUP) {
      const int row = j < count ? ROW_AT(p + j) : -1;
      FLOATS dots[HEADS];
      EACH(h, HEADS) dots[h] = (FLOATS)(0.f);
      if (row >= 0) {
        __global const Element* key = k + ((size_t)row * kv_heads + kv_head) * DIM;
        for (int c = 0; c < VECTORS; ++c) {
          const FLOATS x = load(key + c * WIDTH, c == VECTORS - 1 ? LAST : WIDTH, 0.f);
          EACH(h, HEADS) dots[h] = fma(x, VLOAD(0, queries + h * VECTORS * WIDTH + c * WIDTH), dots[h]);
        }
      }
      EACH(h, HEADS) {
        float logit = sum_of(dots[h]);
#if CAPPED
        logit = tanh(logit) * cap;
#endif
        weights[h * BK + j] = j >= count ? -INFINITY : row < 0 ? NAN : logit;
      }
    }
    SYNC
    EACH(h, HEADS) {
      FLOATS most = (FLOATS)(-INFINITY);
      FEW for (int j = 0; j < BK; j += WIDTH) most = fmax(most, VLOAD(0, weights + h * BK + j));
      const float next = fmax(top[h], max_of(most));
      // So far nothing but -inf: 0 instead keeps the weights at 0.
      base[h] = next == -INFINITY ? 0.f : next;
      const float change = fast_exp1(top[h] - base[h]);
      top[h] = next;
      total[h] *= change;
      EACH(c, OWN) sums[h][c] *= (FLOATS)(change);
    }
    SYNC
    for (int j = item * WIDTH; j < BK; j += GROUP * WIDTH)
      EACH(h, HEADS)
        VSTORE(fast_exp(VLOAD(0, weights + h * BK + j) - (FLOATS)(base[h])), 0, weights + h * BK + j);
    SYNC
    EACH(h, HEADS) {
      FLOATS sum = (FLOATS)(0.f);
      FEW for (int j = 0; j < BK; j += WIDTH) sum += VLOAD(0, weights + h * BK + j);
      total[h] += sum_of(sum);
    }
    for (int j = 0; j < count; ++j) {
      const int row = ROW_AT(p + j);
      if (row < 0) continue;
      __global const Element* value = v + ((size_t)row * kv_heads + kv_head) * DIM;
      EACH(c, OWN) {
        const int vector = item + c * GROUP;
        if (vector < VECTORS) {
          const FLOATS x = load(value + vector * WIDTH, vector == VECTORS - 1 ? LAST : WIDTH, 0.f);
          EACH(h, HEADS) sums[h][c] = fma(x, (FLOATS)(weights[h * BK + j]), sums[h][c]);
        }
      }
    }
    SYNC
  }

  EACH(h, HEADS) {
    if (h >= count_heads) continue;
    const size_t row = (size_t)batch * heads + first_head + h, part = row * splits + split;
    if (splits == 1) {
      const float inverse = length == 0 ? 0.f : 1.f / total[h];
      EACH(c, OWN) {
        const int vector = item + c * GROUP;
        if (vector < VECTORS)
          store(sums[h][c] * (FLOATS)(inverse), out + row * DIM + vector * WIDTH,
                vector == VECTORS - 1 ? LAST : WIDTH);
      }
    } else {
      EACH(c, OWN) {
        const int vector = item + c * GROUP;
        if (vector < VECTORS) VSTORE(sums[h][c], part * VECTORS + vector, part_sums);
      }
      if (item == 0) part_stats[2 * part] = top[h], part_stats[2 * part + 1] = total[h];
    }
  }
}

// One group for each query.
__kernel EJK_GROUP(GROUP, 1, 1)
void decode_join(int heads, int splits, __global const int* restrict lengths, __global const float* restrict part_sums,
                 __global const float* restrict part_stats, __global Element* restrict out) {
  const int row = (int)get_group_id(0), item = (int)get_local_id(0);
  const size_t first = (size_t)row * splits;
#if LENGTHS
  const int blind = lengths[row / heads] == 0;
#else
  const int blind = 0;
#endif
  float top = -INFINITY, total = 0.f;
  for (int s = 0; s < splits; ++s) top = fmax(top, part_stats[2 * (first + s)]);
  const float base = top == -INFINITY ? 0.f : top;
  for (int s = 0; s < splits; ++s)
    total += part_stats[2 * (first + s) + 1] * fast_exp1(part_stats[2 * (first + s)] - base);
  for (int vector = item; vector < VECTORS; vector += GROUP) {
    FLOATS sum = (FLOATS)(0.f);
    for (int s = 0; s < splits; ++s)
      sum = fma(VLOAD((first + s) * VECTORS + vector, part_sums),
                (FLOATS)(fast_exp1(part_stats[2 * (first + s)] - base)), sum);
    store(sum * (FLOATS)(blind ? 0.f : 1.f / total), out + (size_t)row * DIM + vector * WIDTH,
          vector == VECTORS - 1 ? LAST : WIDTH);
  }
}
