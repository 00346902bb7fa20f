// SPDX-License-Identifier: Apache-2.0
// What both ways of attention on devices share: the call, which rows a group has, which keys a query sees.
//
// Arrays are packed, [batch, position, head, DIM]; lse and delta are [batch, heads, queries]. Logits are in
// units of log 2: `factor` is the scale times log2(e), or with a cap the scale over the cap, whose tanh is
// then multiplied with `cap`, the cap times log2(e).
//
// Macros of a program: DIM, BF16, WIDTH, BQ, BK, TQ, TK; CAPPED: logits have a cap; LENGTHS: `lengths` holds
// the number of queries of each batch element, then that of keys; GRADIENT: its kernels instead of forward.

#define CALL                                                                                            \
  int queries, int keys, int heads, int kv_heads, int left, int right, float factor, float cap, float scale, \
      __global const int *restrict lengths, int batches, int blocks
#define THE_CALL queries, keys, heads, kv_heads, left, right, factor, cap, scale, lengths, batches, blocks

#if LENGTHS
#define QUERIES_OF(batch) lengths[batch]
#define KEYS_OF(batch) lengths[batches + (batch)]
#else
#define QUERIES_OF(batch) queries
#define KEYS_OF(batch) keys
#endif

// Where the elements of a position and head begin; where lse and delta of a query are.
EJK_DEVICE size_t elements_at(int batch, int positions, int position, int heads, int head) {
  return (((size_t)batch * positions + position) * heads + head) * DIM;
}
EJK_DEVICE size_t number_at(int batch, int heads, int head, int queries, int query) {
  return ((size_t)batch * heads + head) * queries + query;
}

// A query sees the keys from here to there; nothing if it is not one of the first `queries`.
EJK_DEVICE int sees_from(int query, int left) { return max(0, query - left); }
EJK_DEVICE int sees_to(int query, int right, int queries, int keys) {
  return query < queries ? min(keys, query + right + 1) : 0;
}

// ---- rows that are queries

// BQ queries from `first` on, of one head; of several heads that share keys where there are few queries:
// `heads_in_block` is more than one then, and all queries are in one block.
typedef struct {
  int batch, kv_head, head, heads_left;  // head: the first; heads_left: those that share keys, from it on
  int first, heads_in_block, heads, queries;
  int left, right, query_end, key_end;
} QueryBlock;
// blocks: of each head, or of all heads that share keys.
EJK_DEVICE QueryBlock block_of_queries(CALL, int heads_in_block) {
  const int shared = heads / kv_heads, head_blocks = (shared + heads_in_block - 1) / heads_in_block;
  int at = (int)get_group_id(0);
  QueryBlock block;
  block.first = (blocks - 1 - at % blocks) * BQ;  // those that see most come first
  at /= blocks;
  const int in_group = at % head_blocks * heads_in_block;
  at /= head_blocks;
  block.kv_head = at % kv_heads, block.batch = at / kv_heads;
  block.head = block.kv_head * shared + in_group, block.heads_left = shared - in_group;
  block.heads_in_block = heads_in_block, block.heads = heads, block.queries = queries;
  block.left = left, block.right = right;
  block.query_end = QUERIES_OF(block.batch), block.key_end = KEYS_OF(block.batch);
  return block;
}

typedef struct {
  int head, query;  // -1: no such row
  int from, to;     // the keys that it sees
} Row;
EJK_DEVICE Row row_of(int i, QueryBlock block) {
  const int span = block.heads_in_block > 1 ? block.queries : BQ;
  Row row;
  const int head = i / span;
  row.head = block.head + head;
  row.query = block.first + i % span;
  if (head >= block.heads_in_block || head >= block.heads_left || row.query >= block.queries) row.query = -1;
  row.from = row.query < 0 ? 0 : sees_from(row.query, block.left);
  row.to = row.query < 0 ? 0 : sees_to(row.query, block.right, block.query_end, block.key_end);
  return row;
}
EJK_DEVICE size_t elements_of(Row row, QueryBlock block) {
  return elements_at(block.batch, block.queries, row.query, block.heads, row.head);
}
EJK_DEVICE size_t number_of(Row row, QueryBlock block) {
  return number_at(block.batch, block.heads, row.head, block.queries, row.query);
}

// The keys that any row sees that sees some, and those that all of these see.
typedef struct {
  int any_from, any_to, all_from, all_to;
} Seen;
EJK_DEVICE Seen seen_by_none(int keys) {
  Seen seen;
  seen.any_from = keys, seen.any_to = 0, seen.all_from = 0, seen.all_to = keys;
  return seen;
}
EJK_DEVICE void add_row(Seen* seen, Row row) {
  if (row.from >= row.to) return;
  seen->any_from = min(seen->any_from, row.from), seen->any_to = max(seen->any_to, row.to);
  seen->all_from = max(seen->all_from, row.from), seen->all_to = min(seen->all_to, row.to);
}

// ---- rows that are keys

typedef struct {
  int batch, kv_head, first, last, key_end;
  int query_from, query_to;  // those who see any of these keys
} KeyBlock;
EJK_DEVICE KeyBlock block_of_keys(CALL) {
  const int kv = (int)get_group_id(0) / blocks;
  KeyBlock block;
  block.kv_head = kv % kv_heads, block.batch = kv / kv_heads;
  block.first = (int)get_group_id(0) % blocks * BQ, block.last = min(block.first + BQ, keys) - 1;
  block.key_end = KEYS_OF(block.batch);
  block.query_from = max(0, block.first - right);
  block.query_to = block.first < block.key_end ? min(QUERIES_OF(block.batch), block.last + left + 1) : 0;
  return block;
}
