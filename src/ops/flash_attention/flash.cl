// SPDX-License-Identifier: Apache-2.0
// What both ways of attention on devices share: the call, which keys a query sees, logits.
//
// Arrays are packed, [batch, position, head, DIM]; lse and delta are [batch, heads, queries]. Logits are in
// units of log 2: `factor` is the scale times log2(e), or with a cap the scale over the cap, whose tanh is
// then multiplied with `cap`, the cap times log2(e).
//
// Macros of a program: DIM, BF16, WIDTH, BQ, BK, TQ, TK; CAPPED: logits have a cap; LENGTHS: `lengths` holds
// the number of queries of each batch element, then that of keys; GRADIENT: its kernels instead of forward.

#define CALL                                                                                            \
  int queries, int keys, int heads, int kv_heads, int left, int right, float factor, float cap, float scale, \
      __global const int* restrict lengths

#if LENGTHS
#define QUERIES_OF(batch, batches) lengths[batch]
#define KEYS_OF(batch, batches) lengths[(batches) + (batch)]
#else
#define QUERIES_OF(batch, batches) queries
#define KEYS_OF(batch, batches) keys
#endif

// A query sees the keys from here to there; nothing if it is none of the first `queries`.
EJK_DEVICE int sees_from(int query, int left) { return max(0, query - left); }
EJK_DEVICE int sees_to(int query, int right, int queries, int keys) {
  return query < queries ? min(keys, query + right + 1) : 0;
}

// Rows of a block are queries of one head; of several heads that share keys where there are few queries:
// `heads_in_block` is more than one then, and all queries are in one block.
typedef struct {
  int head, query;  // -1: no such row
} Row;
EJK_DEVICE Row row_of(int i, int first_head, int heads_left, int first, int queries, int heads_in_block) {
  const int span = heads_in_block > 1 ? queries : BQ;
  Row row;
  const int head = i / span;
  row.head = first_head + head;
  row.query = first + i % span;
  if (head >= heads_in_block || head >= heads_left || row.query >= queries) row.query = -1;
  return row;
}
