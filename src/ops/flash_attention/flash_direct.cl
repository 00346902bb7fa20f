// SPDX-License-Identifier: Apache-2.0
// Attention with one item per group, for devices that are CPUs. The lanes of TQ vectors are queries (for the
// gradients of keys and values: keys), BK rows of the other side are held against them at a time, TK at a time in
// registers.

#define LANES (TQ * WIDTH)
#define ROW_SIZE ((DIM + TK - 1) / TK * TK)
#define INTS EJK_JOIN(int, WIDTH)
#define UINTS EJK_JOIN(uint, WIDTH)
#define AS_FLOATS EJK_JOIN(as_float, WIDTH)
#define AS_UINTS EJK_JOIN(as_uint, WIDTH)
#ifdef EJK_CUDA
#define WHICH(no, yes, which) select(no, yes, which)
#else
#define WHICH(no, yes, which) ((which) ? (yes) : (no)) /* one instruction; select is several */
#endif

// 2^x for x up to 127, with a relative error below 2e-7; from -127 on down it is 0. NaN stays NaN. Near
// 1.5 * 2^23 an ulp is 1, so adding that rounds x to the exponent, which then stands in the lowest bits.
EJK_DEVICE FLOATS two_to_the(FLOATS given) {
  const FLOATS x = WHICH(given, (FLOATS)(-127.f), given < (FLOATS)(-127.f));
  const FLOATS rounder = (FLOATS)(0x1.8p23f + 127.f);
  const FLOATS shifted = x + rounder;
  const FLOATS r = x - (shifted - rounder);
  FLOATS p = (FLOATS)(0.0013264727256729327f);
  p = fma(p, r, (FLOATS)(0.009671513077282798f));
  p = fma(p, r, (FLOATS)(0.05550733746109366f));
  p = fma(p, r, (FLOATS)(0.24022242077945685f));
  p = fma(p, r, (FLOATS)(0.6931469775959966f));
  p = fma(p, r, (FLOATS)(1.f));
  return p * AS_FLOATS(AS_UINTS(shifted) << (UINTS)(23u));
}

// ---- blocks

// products[j] = rows[j] . columns, for `count` rows, a multiple of TK.
EJK_DEVICE void times_columns(const float* rows, int count, const FLOATS* columns, FLOATS* products) {
  for (int j = 0; j < count; j += TK) {
    FLOATS sum[TK][TQ];
    EACH(i, TK) EACH(c, TQ) sum[i][c] = (FLOATS)(0.f);
    for (int d = 0; d < DIM; ++d) {
      FLOATS x[TQ];
      EACH(c, TQ) x[c] = columns[d * TQ + c];
      EACH(i, TK) {
        const FLOATS row = (FLOATS)(rows[(j + i) * ROW_SIZE + d]);
        EACH(c, TQ) sum[i][c] = fma(row, x[c], sum[i][c]);
      }
    }
    EACH(i, TK) EACH(c, TQ) products[(j + i) * TQ + c] = sum[i][c];
  }
}

// sums = sums factors + rows[0] weights[0] + ..., for `count` rows.
EJK_DEVICE void add_rows(const float* rows, int count, const FLOATS* weights, const FLOATS* factors,
                         FLOATS* sums) {
  for (int d = 0; d < ROW_SIZE; d += TK) {
    FLOATS sum[TK][TQ];
    EACH(i, TK) EACH(c, TQ) sum[i][c] = sums[(d + i) * TQ + c] * factors[c];
    for (int j = 0; j < count; ++j) {
      FLOATS x[TQ];
      EACH(c, TQ) x[c] = weights[j * TQ + c];
      EACH(i, TK) {
        const FLOATS row = (FLOATS)(rows[j * ROW_SIZE + d + i]);
        EACH(c, TQ) sum[i][c] = fma(row, x[c], sum[i][c]);
      }
    }
    EACH(i, TK) EACH(c, TQ) sums[(d + i) * TQ + c] = sum[i][c];
  }
}

// The same where a weight of 0 keeps out what is not finite.
EJK_DEVICE void add_seen_rows(const float* rows, int count, const FLOATS* weights, const FLOATS* factors,
                              FLOATS* sums) {
  for (int d = 0; d < DIM; ++d)
    for (int c = 0; c < TQ; ++c) {
      FLOATS sum = sums[d * TQ + c] * factors[c];
      for (int j = 0; j < count; ++j) {
        const FLOATS weight = weights[j * TQ + c], more = fma((FLOATS)(rows[j * ROW_SIZE + d]), weight, sum);
        sum = WHICH(more, sum, weight == (FLOATS)(0.f));
      }
      sums[d * TQ + c] = sum;
    }
}

// `count` rows as floats, with zeros up to a multiple of TK in both directions.
EJK_DEVICE void stage(__global const Element* from, size_t stride, int count, float* rows) {
  for (int j = 0; j < count; ++j) {
    __global const Element* row = from + j * stride;
    float* to = rows + j * ROW_SIZE;
    int d = 0;
    for (; d + WIDTH <= DIM; d += WIDTH) EJK_JOIN(vstore, WIDTH)(EJK_JOIN(load, WIDTH)(row + d), 0, to + d);
    for (; d < DIM; ++d) to[d] = load1(row + d);
    for (; d < ROW_SIZE; ++d) to[d] = 0.f;
  }
  for (int i = count * ROW_SIZE; i % (TK * ROW_SIZE) != 0; ++i) rows[i] = 0.f;
}
EJK_DEVICE int all_finite(const float* rows, int count) {
  FLOATS zeros = (FLOATS)(0.f);
  int i = 0;
  for (; i + WIDTH <= count * ROW_SIZE; i += WIDTH)
    zeros = fma(EJK_JOIN(vload, WIDTH)(0, rows + i), (FLOATS)(0.f), zeros);
  float zero = sum_of(zeros);
  for (; i < count * ROW_SIZE; ++i) zero += rows[i] * 0.f;
  return zero == 0.f;
}

// One row becomes lane i of columns.
EJK_DEVICE void put_lane(__global const Element* row, float factor, int i, FLOATS* columns) {
  float* to = (float*)columns + i;
  for (int d = 0; d < DIM; ++d) to[d * LANES] = load1(row + d) * factor;
}
EJK_DEVICE void put_zeros(int i, FLOATS* columns) {
  for (int d = 0; d < DIM; ++d) ((float*)columns)[d * LANES + i] = 0.f;
}
EJK_DEVICE void take_lane(const FLOATS* columns, int i, float factor, __global Element* row) {
  for (int d = 0; d < DIM; ++d) store1(((const float*)columns)[d * LANES + i] * factor, row + d);
}
EJK_DEVICE void clear(FLOATS* columns) {
  for (int i = 0; i < ROW_SIZE * TQ; ++i) columns[i] = (FLOATS)(0.f);
}

EJK_DEVICE void put_cap(FLOATS* logits, int count, float cap) {
#if CAPPED
  for (int i = 0; i < count * TQ; ++i) logits[i] = tanh(logits[i]) * (FLOATS)(cap);
#endif
}

// ---- kernels

#if !GRADIENT
__kernel EJK_GROUP(1, 1, 1)
void flash_forward(CALL, int heads_in_block, __global const Element* restrict q,
                   __global const Element* restrict k, __global const Element* restrict v,
                   __global Element* restrict out, int with_lse, __global float* restrict lse) {
  FLOATS columns[DIM * TQ], sums[ROW_SIZE * TQ], logits[BK * TQ], top[TQ], total[TQ], factors[TQ];
  INTS begin[TQ], end[TQ];
  float rows[BK * ROW_SIZE];
  const QueryBlock block = block_of_queries(THE_CALL, heads_in_block);

  Seen seen = seen_by_none(keys);
  for (int i = 0; i < LANES; ++i) {
    const Row row = row_of(i, block);
    add_row(&seen, row);
    if (row.from < row.to) {
      put_lane(q + elements_of(row, block), factor, i, columns);
      ((int*)begin)[i] = row.from, ((int*)end)[i] = row.to;
    } else {
      put_zeros(i, columns);
      ((int*)begin)[i] = 0, ((int*)end)[i] = keys;
    }
  }
  clear(sums);
  EACH(c, TQ) top[c] = (FLOATS)(-INFINITY), total[c] = (FLOATS)(0.f);

  const size_t stride = (size_t)kv_heads * DIM, rows_at = elements_at(block.batch, keys, 0, kv_heads, block.kv_head);
  for (int from = seen.any_from; from < seen.any_to; from += BK) {
    const int count = min(BK, seen.any_to - from);
    const int partly = from < seen.all_from || from + count > seen.all_to;
    stage(k + rows_at + from * stride, stride, count, rows);
    times_columns(rows, (count + TK - 1) / TK * TK, columns, logits);
    put_cap(logits, count, cap);
    if (partly)
      for (int j = 0; j < count; ++j) {
        const INTS key = (INTS)(from + j);
        EACH(c, TQ)
          logits[j * TQ + c] =
              WHICH((FLOATS)(-INFINITY), logits[j * TQ + c], (key >= begin[c]) & (key < end[c]));
      }

    FLOATS most[TQ];
    EACH(c, TQ) most[c] = top[c];
    for (int j = 0; j < count; ++j)
      EACH(c, TQ) most[c] = WHICH(most[c], logits[j * TQ + c], logits[j * TQ + c] > most[c]);
    EACH(c, TQ) {
      const FLOATS old = top[c];
      top[c] = most[c];
      // So far nothing but -inf: 0 instead keeps the weights at 0.
      most[c] = WHICH(most[c], (FLOATS)(0.f), most[c] == (FLOATS)(-INFINITY));
      factors[c] = two_to_the(old - most[c]);
      total[c] *= factors[c];
    }
    for (int j = 0; j < count; ++j)
      EACH(c, TQ) {
        const FLOATS weight = two_to_the(logits[j * TQ + c] - most[c]);
        total[c] += weight;
        logits[j * TQ + c] = weight;
      }

    stage(v + rows_at + from * stride, stride, count, rows);
    if (partly && !all_finite(rows, count)) add_seen_rows(rows, count, logits, factors, sums);
    else add_rows(rows, count, logits, factors, sums);
  }

  for (int i = 0; i < LANES; ++i) {
    const Row row = row_of(i, block);
    if (row.query < 0) continue;
    __global Element* to = out + elements_of(row, block);
    const int blind = row.from >= row.to;
    const float all = ((const float*)total)[i];
    if (blind)
      for (int d = 0; d < DIM; ++d) store1(0.f, to + d);
    else take_lane(sums, i, 1.f / all, to);
    if (with_lse) lse[number_of(row, block)] = blind ? 0.f : ((const float*)top)[i] + log2(all);
  }
}

#else
// From products of queries and keys to weights, and from those of dout and values to gradients of the former.
EJK_DEVICE void to_gradients(FLOATS* logits, FLOATS* dots, int i, FLOATS lse, FLOATS delta, float cap,
                             INTS seen) {
#if CAPPED
  const FLOATS bend = tanh(logits[i]), logit = bend * (FLOATS)(cap);
  const FLOATS slope = fma(-bend, bend, (FLOATS)(1.f));
#else
  const FLOATS logit = logits[i], slope = (FLOATS)(1.f);
#endif
  const FLOATS weight = WHICH((FLOATS)(0.f), two_to_the(logit - lse), seen);
  logits[i] = weight;
  dots[i] = WHICH((FLOATS)(0.f), weight * (dots[i] - delta) * slope, seen);
}

// dq, and delta: the products of dout and out.
__kernel EJK_GROUP(1, 1, 1)
void flash_dq(CALL, int heads_in_block, __global const Element* restrict q,
              __global const Element* restrict k, __global const Element* restrict v,
              __global const Element* restrict out, __global const Element* restrict dout,
              __global const float* restrict lse, __global float* restrict delta,
              __global Element* restrict dq) {
  FLOATS q_columns[DIM * TQ], dout_columns[DIM * TQ], sums[ROW_SIZE * TQ], logits[BK * TQ], dots[BK * TQ];
  FLOATS lses[TQ], deltas[TQ], ones[TQ];
  INTS begin[TQ], end[TQ];
  float k_rows[BK * ROW_SIZE], v_rows[BK * ROW_SIZE];
  const QueryBlock block = block_of_queries(THE_CALL, heads_in_block);

  Seen seen = seen_by_none(keys);
  for (int i = 0; i < LANES; ++i) {
    const Row row = row_of(i, block);
    add_row(&seen, row);
    float row_lse = 0.f, row_delta = 0.f;
    if (row.from < row.to) {
      const size_t place = elements_of(row, block);
      put_lane(q + place, factor, i, q_columns);
      put_lane(dout + place, 1.f, i, dout_columns);
      for (int d = 0; d < DIM; ++d) row_delta += load1(out + place + d) * load1(dout + place + d);
      row_lse = lse[number_of(row, block)];
    } else {
      put_zeros(i, q_columns);
      put_zeros(i, dout_columns);
    }
    if (row.query >= 0) delta[number_of(row, block)] = row_delta;
    ((float*)lses)[i] = row_lse, ((float*)deltas)[i] = row_delta;
    ((int*)begin)[i] = row.from, ((int*)end)[i] = row.to;
  }
  clear(sums);
  EACH(c, TQ) ones[c] = (FLOATS)(1.f);

  const size_t stride = (size_t)kv_heads * DIM, rows_at = elements_at(block.batch, keys, 0, kv_heads, block.kv_head);
  for (int from = seen.any_from; from < seen.any_to; from += BK) {
    const int count = min(BK, seen.any_to - from), padded = (count + TK - 1) / TK * TK;
    stage(k + rows_at + from * stride, stride, count, k_rows);
    stage(v + rows_at + from * stride, stride, count, v_rows);
    times_columns(k_rows, padded, q_columns, logits);
    times_columns(v_rows, padded, dout_columns, dots);
    for (int j = 0; j < count; ++j) {
      const INTS key = (INTS)(from + j);
      EACH(c, TQ)
        to_gradients(logits, dots, j * TQ + c, lses[c], deltas[c], cap, (key >= begin[c]) & (key < end[c]));
    }
    if (all_finite(k_rows, count)) add_rows(k_rows, count, dots, ones, sums);
    else add_seen_rows(k_rows, count, dots, ones, sums);
  }
  for (int i = 0; i < LANES; ++i) {
    const Row row = row_of(i, block);
    if (row.query >= 0) take_lane(sums, i, scale, dq + elements_of(row, block));
  }
}

// dk and dv: lanes are keys, rows the queries of all heads that share them.
__kernel EJK_GROUP(1, 1, 1)
void flash_dkdv(CALL, __global const Element* restrict q,
                __global const Element* restrict k, __global const Element* restrict v,
                __global const Element* restrict dout, __global const float* restrict lse,
                __global const float* restrict delta, __global Element* restrict dk,
                __global Element* restrict dv) {
  FLOATS k_columns[DIM * TQ], v_columns[DIM * TQ], dk_sums[ROW_SIZE * TQ], dv_sums[ROW_SIZE * TQ];
  FLOATS logits[BK * TQ], dots[BK * TQ], ones[TQ];
  INTS key[TQ];
  float q_rows[BK * ROW_SIZE], dout_rows[BK * ROW_SIZE];
  const KeyBlock block = block_of_keys(THE_CALL);
  for (int i = 0; i < LANES; ++i) {
    const size_t place = elements_at(block.batch, keys, min(block.first + i, keys - 1), kv_heads, block.kv_head);
    put_lane(k + place, factor, i, k_columns);
    put_lane(v + place, 1.f, i, v_columns);
    ((int*)key)[i] = block.first + i;
  }
  clear(dk_sums);
  clear(dv_sums);
  EACH(c, TQ) ones[c] = (FLOATS)(1.f);

  const int shared = heads / kv_heads;
  for (int head = block.kv_head * shared; head < (block.kv_head + 1) * shared; ++head)
    for (int from = block.query_from; from < block.query_to; from += BK) {
      const int count = min(BK, block.query_to - from), padded = (count + TK - 1) / TK * TK;
      const size_t stride = (size_t)heads * DIM, rows_at = elements_at(block.batch, queries, from, heads, head);
      stage(q + rows_at, stride, count, q_rows);
      stage(dout + rows_at, stride, count, dout_rows);
      times_columns(q_rows, padded, k_columns, logits);
      times_columns(dout_rows, padded, v_columns, dots);
      for (int j = 0; j < count; ++j) {
        const int query = from + j;
        const size_t row = number_at(block.batch, heads, head, queries, query);
        const INTS begin = (INTS)(sees_from(query, left));
        const INTS end = (INTS)(sees_to(query, right, block.query_to, block.key_end));
        EACH(c, TQ)
          to_gradients(logits, dots, j * TQ + c, (FLOATS)(lse[row]), (FLOATS)(delta[row]), cap,
                       (key[c] >= begin) & (key[c] < end));
      }
      if (all_finite(dout_rows, count)) add_rows(dout_rows, count, logits, ones, dv_sums);
      else add_seen_rows(dout_rows, count, logits, ones, dv_sums);
      if (all_finite(q_rows, count)) add_rows(q_rows, count, dots, ones, dk_sums);
      else add_seen_rows(q_rows, count, dots, ones, dk_sums);
    }
  for (int i = 0; block.first + i <= block.last; ++i) {
    const size_t place = elements_at(block.batch, keys, block.first + i, kv_heads, block.kv_head);
    take_lane(dk_sums, i, scale, dk + place);
    take_lane(dv_sums, i, 1.f, dv + place);
  }
}
#endif
