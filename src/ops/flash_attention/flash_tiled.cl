// SPDX-License-Identifier: Apache-2.0
// Attention with groups that share local memory, for GPUs. A group has BQ rows (queries; for the gradients of keys
// and values: keys) and holds BK columns of the other side against them at a time. An item has TQ x TK of a block of
// products, and of the sums TQ rows and every LX-th element.

#define LX (BK / TK)
#define LY (BQ / TQ)
#define ITEMS (LX * LY)
#define OF_ROW ((DIM + LX - 1) / LX)
#define COLUMN (DIM + 1)     /* so that neighbours read from different banks */
#define PRODUCTS (BK + 1)

// `size` rows of which there are `count`, at least one; the others are copies of the last, which no query sees. (Not
// asking before each load also keeps PoCL 3.1 from crashing.) Every item has a part.
EJK_DEVICE void stage(__global const Element* from, size_t stride, int count, int size, int step,
                      EJK_LOCAL_PTR float* to) {
  for (int e = (int)get_local_id(0) * WIDTH; e < size * DIM; e += ITEMS * WIDTH) {
    const int j = e / DIM, d = e % DIM;
    __global const Element* part = from + min(j, count - 1) * stride + d;
#if WIDTH == 1
    to[j * step + d] = load1(part);
#else
    EJK_JOIN(vstore, WIDTH)(EJK_JOIN(load, WIDTH)(part), 0, to + j * step + d);
#endif
  }
}

// The item's part of rows times columns.
EJK_DEVICE void multiply(EJK_LOCAL_PTR const float* rows, EJK_LOCAL_PTR const float* columns, int lx, int ly,
                         float (*products)[TK]) {
  EACH(i, TQ) EACH(j, TK) products[i][j] = 0.f;
  for (int d = 0; d < DIM; ++d) {
    float x[TQ], y[TK];
    EACH(i, TQ) x[i] = rows[(ly * TQ + i) * DIM + d];
    EACH(j, TK) y[j] = columns[(lx + j * LX) * COLUMN + d];
    EACH(i, TQ) EACH(j, TK) products[i][j] = fma(x[i], y[j], products[i][j]);
  }
}

// sums += weights columns, for `count` columns. Where some are not seen, a weight of 0 keeps out what is not
// finite.
EJK_DEVICE void add_columns(EJK_LOCAL_PTR const float* weights, EJK_LOCAL_PTR const float* columns, int count,
                            int partly, int lx, int ly, float (*sums)[OF_ROW]) {
  for (int j = 0; j < count; ++j) {
    float x[TQ];
    EACH(i, TQ) x[i] = weights[(ly * TQ + i) * PRODUCTS + j];
    EACH(c, OF_ROW) {
      const int d = lx + c * LX;
      const float y = d < DIM ? columns[j * COLUMN + d] : 0.f;
      EACH(i, TQ) {
        const float more = fma(x[i], y, sums[i][c]);
        sums[i][c] = partly && x[i] == 0.f ? sums[i][c] : more;
      }
    }
  }
}

EJK_DEVICE float with_cap(float product, float cap) {
#if CAPPED
  return tanh(product) * cap;
#else
  return product;
#endif
}

#if !GRADIENT
__kernel EJK_GROUP(ITEMS, 1, 1)
void flash_forward(CALL, int heads_in_block, __global const Element* restrict q,
                   __global const Element* restrict k, __global const Element* restrict v,
                   __global Element* restrict out, int with_lse, __global float* restrict lse) {
  __local float room[BQ * DIM + BK * COLUMN + BQ * PRODUCTS + BQ * LX];
  EJK_LOCAL_PTR float* rows = room;
  EJK_LOCAL_PTR float* columns = rows + BQ * DIM;
  EJK_LOCAL_PTR float* weights = columns + BK * COLUMN;
  EJK_LOCAL_PTR float* parts = weights + BQ * PRODUCTS;
  const int item = (int)get_local_id(0), lx = item % LX, ly = item / LX;
  const QueryBlock block = block_of_queries(THE_CALL, heads_in_block);

  // Every item looks at all rows, so that they agree.
  Seen seen = seen_by_none(keys);
  for (int i = 0; i < BQ; ++i) add_row(&seen, row_of(i, block));
  for (int e = item; e < BQ * DIM; e += ITEMS) {
    const Row row = row_of(e / DIM, block);
    rows[e] = row.query < 0 ? 0.f : load1(q + elements_of(row, block) + e % DIM) * factor;
  }
  int begin[TQ], end[TQ];
  float top[TQ], total[TQ], sums[TQ][OF_ROW];
  EACH(i, TQ) {
    const Row row = row_of(ly * TQ + i, block);
    begin[i] = row.from, end[i] = row.to;
    top[i] = -INFINITY, total[i] = 0.f;
    EACH(c, OF_ROW) sums[i][c] = 0.f;
  }

  const size_t stride = (size_t)kv_heads * DIM;
  const size_t columns_at = elements_at(block.batch, keys, 0, kv_heads, block.kv_head);
  for (int from = seen.any_from; from < seen.any_to; from += BK) {
    const int count = min(BK, seen.any_to - from);
    const int partly = from < seen.all_from || from + count > seen.all_to;
    stage(k + columns_at + from * stride, stride, count, BK, COLUMN, columns);
    barrier(CLK_LOCAL_MEM_FENCE);
    float products[TQ][TK];
    multiply(rows, columns, lx, ly, products);
    EACH(i, TQ) {
      float most = -INFINITY;
      EACH(j, TK) {
        const int key = from + lx + j * LX;
        products[i][j] = key >= begin[i] && key < end[i] ? with_cap(products[i][j], cap) : -INFINITY;
        most = fmax(most, products[i][j]);
      }
      parts[(ly * TQ + i) * LX + lx] = most;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    EACH(i, TQ) {
      float most = top[i];
      for (int l = 0; l < LX; ++l) most = fmax(most, parts[(ly * TQ + i) * LX + l]);
      const float old = top[i];
      top[i] = most;
      // So far nothing but -inf: 0 instead keeps the weights at 0.
      most = most == -INFINITY ? 0.f : most;
      const float change = exp2(old - most);
      total[i] *= change;
      EACH(c, OF_ROW) sums[i][c] *= change;
      EACH(j, TK) {
        const float weight = exp2(products[i][j] - most);
        total[i] += weight;
        weights[(ly * TQ + i) * PRODUCTS + lx + j * LX] = weight;
      }
    }
    stage(v + columns_at + from * stride, stride, count, BK, COLUMN, columns);
    barrier(CLK_LOCAL_MEM_FENCE);
    add_columns(weights, columns, count, partly, lx, ly, sums);
    barrier(CLK_LOCAL_MEM_FENCE);
  }

  EACH(i, TQ) parts[(ly * TQ + i) * LX + lx] = total[i];
  barrier(CLK_LOCAL_MEM_FENCE);
  EACH(i, TQ) {
    const Row row = row_of(ly * TQ + i, block);
    if (row.query < 0) continue;
    const int blind = begin[i] >= end[i];
    float all = 0.f;
    for (int l = 0; l < LX; ++l) all += parts[(ly * TQ + i) * LX + l];
    __global Element* to = out + elements_of(row, block);
    EACH(c, OF_ROW)
      if (lx + c * LX < DIM) store1(blind ? 0.f : sums[i][c] / all, to + lx + c * LX);
    if (with_lse && lx == 0) lse[number_of(row, block)] = blind ? 0.f : top[i] + log2(all);
  }
}

#else
// From products of queries and keys to the weight, and from those of dout and values to the gradient of the former.
EJK_DEVICE float weight_of(float product, float lse, float cap, int seen) {
  return seen ? exp2(with_cap(product, cap) - lse) : 0.f;
}
EJK_DEVICE float gradient_of(float product, float weight, float dot, float delta, int seen) {
#if CAPPED
  const float bend = tanh(product), slope = fma(-bend, bend, 1.f);
#else
  const float slope = 1.f;
#endif
  return seen ? weight * (dot - delta) * slope : 0.f;
}

// dq, and delta: the products of dout and out.
__kernel EJK_GROUP(ITEMS, 1, 1)
void flash_dq(CALL, int heads_in_block, __global const Element* restrict q,
              __global const Element* restrict k, __global const Element* restrict v,
              __global const Element* restrict out, __global const Element* restrict dout,
              __global const float* restrict lse, __global float* delta, __global Element* restrict dq) {
  __local float room[2 * BQ * DIM + 2 * BK * COLUMN + BQ * PRODUCTS];
  EJK_LOCAL_PTR float* q_rows = room;
  EJK_LOCAL_PTR float* dout_rows = q_rows + BQ * DIM;
  EJK_LOCAL_PTR float* k_columns = dout_rows + BQ * DIM;
  EJK_LOCAL_PTR float* v_columns = k_columns + BK * COLUMN;
  EJK_LOCAL_PTR float* gradients = v_columns + BK * COLUMN;
  const int item = (int)get_local_id(0), lx = item % LX, ly = item / LX;
  const QueryBlock block = block_of_queries(THE_CALL, heads_in_block);

  Seen seen = seen_by_none(keys);
  for (int i = 0; i < BQ; ++i) add_row(&seen, row_of(i, block));
  for (int e = item; e < BQ * DIM; e += ITEMS) {
    const Row row = row_of(e / DIM, block);
    const size_t place = elements_of(row, block) + e % DIM;
    q_rows[e] = row.query < 0 ? 0.f : load1(q + place) * factor;
    dout_rows[e] = row.query < 0 ? 0.f : load1(dout + place);
  }
  for (int i = item; i < BQ; i += ITEMS) {
    const Row row = row_of(i, block);
    if (row.query < 0) continue;
    const size_t place = elements_of(row, block);
    float sum = 0.f;
    for (int d = 0; d < DIM; ++d) sum = fma(load1(out + place + d), load1(dout + place + d), sum);
    delta[number_of(row, block)] = sum;
  }
  barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);

  int begin[TQ], end[TQ];
  float row_lse[TQ], row_delta[TQ], sums[TQ][OF_ROW];
  EACH(i, TQ) {
    const Row row = row_of(ly * TQ + i, block);
    const size_t place = number_of(row, block);
    begin[i] = row.from, end[i] = row.to;
    row_lse[i] = row.query < 0 ? 0.f : lse[place];
    row_delta[i] = row.query < 0 ? 0.f : delta[place];
    EACH(c, OF_ROW) sums[i][c] = 0.f;
  }

  const size_t stride = (size_t)kv_heads * DIM;
  const size_t columns_at = elements_at(block.batch, keys, 0, kv_heads, block.kv_head);
  for (int from = seen.any_from; from < seen.any_to; from += BK) {
    const int count = min(BK, seen.any_to - from);
    stage(k + columns_at + from * stride, stride, count, BK, COLUMN, k_columns);
    stage(v + columns_at + from * stride, stride, count, BK, COLUMN, v_columns);
    barrier(CLK_LOCAL_MEM_FENCE);
    float products[TQ][TK], dots[TQ][TK];
    multiply(q_rows, k_columns, lx, ly, products);
    multiply(dout_rows, v_columns, lx, ly, dots);
    EACH(i, TQ) EACH(j, TK) {
      const int key = from + lx + j * LX, seen = key >= begin[i] && key < end[i];
      const float weight = weight_of(products[i][j], row_lse[i], cap, seen);
      gradients[(ly * TQ + i) * PRODUCTS + lx + j * LX] =
          gradient_of(products[i][j], weight, dots[i][j], row_delta[i], seen);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    add_columns(gradients, k_columns, count, 1, lx, ly, sums);
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  EACH(i, TQ) {
    const Row row = row_of(ly * TQ + i, block);
    if (row.query < 0) continue;
    __global Element* to = dq + elements_of(row, block);
    EACH(c, OF_ROW)
      if (lx + c * LX < DIM) store1(sums[i][c] * scale, to + lx + c * LX);
  }
}

// dk and dv: rows are keys, columns the queries of all heads that share them.
__kernel EJK_GROUP(ITEMS, 1, 1)
void flash_dkdv(CALL, __global const Element* restrict q,
                __global const Element* restrict k, __global const Element* restrict v,
                __global const Element* restrict dout, __global const float* restrict lse,
                __global const float* restrict delta, __global Element* restrict dk,
                __global Element* restrict dv) {
  __local float room[2 * BQ * DIM + 2 * BK * COLUMN + BQ * PRODUCTS];
  EJK_LOCAL_PTR float* k_rows = room;
  EJK_LOCAL_PTR float* v_rows = k_rows + BQ * DIM;
  EJK_LOCAL_PTR float* q_columns = v_rows + BQ * DIM;
  EJK_LOCAL_PTR float* dout_columns = q_columns + BK * COLUMN;
  EJK_LOCAL_PTR float* weights = dout_columns + BK * COLUMN;
  const int item = (int)get_local_id(0), lx = item % LX, ly = item / LX;
  const KeyBlock block = block_of_keys(THE_CALL);
  const size_t kv_stride = (size_t)kv_heads * DIM;
  const size_t rows_at = elements_at(block.batch, keys, block.first, kv_heads, block.kv_head);
  stage(k + rows_at, kv_stride, block.last + 1 - block.first, BQ, DIM, k_rows);
  stage(v + rows_at, kv_stride, block.last + 1 - block.first, BQ, DIM, v_rows);
  float dk_sums[TQ][OF_ROW], dv_sums[TQ][OF_ROW];
  EACH(i, TQ) EACH(c, OF_ROW) dk_sums[i][c] = 0.f, dv_sums[i][c] = 0.f;

  const int shared = heads / kv_heads;
  for (int head = block.kv_head * shared; head < (block.kv_head + 1) * shared; ++head)
    for (int from = block.query_from; from < block.query_to; from += BK) {
      const int count = min(BK, block.query_to - from);
      const size_t stride = (size_t)heads * DIM, columns_at = elements_at(block.batch, queries, from, heads, head);
      stage(q + columns_at, stride, count, BK, COLUMN, q_columns);
      stage(dout + columns_at, stride, count, BK, COLUMN, dout_columns);
      barrier(CLK_LOCAL_MEM_FENCE);
      float products[TQ][TK], dots[TQ][TK];
      multiply(k_rows, q_columns, lx, ly, products);
      multiply(v_rows, dout_columns, lx, ly, dots);
      EACH(j, TK) {
        const int column = lx + j * LX, query = from + column;
        const size_t place = number_at(block.batch, heads, head, queries, min(query, queries - 1));
        const int end = sees_to(query, right, from + count, block.key_end);
        const float column_lse = lse[place], column_delta = delta[place];
        EACH(i, TQ) {
          const int key = block.first + ly * TQ + i, seen = key >= sees_from(query, left) && key < end;
          const float product = products[i][j] * factor;
          const float weight = weight_of(product, column_lse, cap, seen);
          products[i][j] = gradient_of(product, weight, dots[i][j], column_delta, seen);
          weights[(ly * TQ + i) * PRODUCTS + column] = weight;
        }
      }
      barrier(CLK_LOCAL_MEM_FENCE);
      add_columns(weights, dout_columns, count, 1, lx, ly, dv_sums);
      barrier(CLK_LOCAL_MEM_FENCE);
      EACH(i, TQ) EACH(j, TK) weights[(ly * TQ + i) * PRODUCTS + lx + j * LX] = products[i][j];
      barrier(CLK_LOCAL_MEM_FENCE);
      add_columns(weights, q_columns, count, 1, lx, ly, dk_sums);
      barrier(CLK_LOCAL_MEM_FENCE);
    }
  EACH(i, TQ) {
    const int key = block.first + ly * TQ + i;
    if (key >= keys) continue;
    const size_t place = elements_at(block.batch, keys, key, kv_heads, block.kv_head);
    EACH(c, OF_ROW)
      if (lx + c * LX < DIM) {
        store1(dk_sums[i][c] * scale, dk + place + lx + c * LX);
        store1(dv_sums[i][c], dv + place + lx + c * LX);
      }
  }
}
#endif
