/* Decode attention of some splits and heads over elements, codes of int8 with scales, or float16: a template of all.

   KV(x) is the name of x for a cache of `kv_element`; WIDEN_KV and LOAD_KV make floats of `kv_wide`. */

/* Prefetches `size` elements at each offset, in the order of memory. */
INLINE void KV(ask_for)(const kv_element *values, const int64_t *offsets, int num_keys, int64_t size) {
  for (int j = 0; j < num_keys; j++)
    for (int64_t i = 0; i < size; i += LINE_BYTES / (int)sizeof(kv_element)) __builtin_prefetch(values + offsets[j] + i, 0, ASKED_NEAR);
}

/* Tokens in the order in which they are read, some heads of each. */
typedef struct {
  const kv_element *from;
  const int64_t *offsets;
  int num_tokens;
} KV(stretch);

/* Prefetches tokens [j, j + num_tokens) of `here` continued by `next`. */
INLINE void KV(ask_beyond)(KV(stretch) here, KV(stretch) next, int j, int num_tokens, int64_t size) {
  const int left = here.num_tokens - j, from_here = left < 0 ? 0 : left < num_tokens ? left : num_tokens;
  if (from_here) KV(ask_for)(here.from, here.offsets + j, from_here, size);
  const int skip = left < 0 ? -left : 0, rest = num_tokens - from_here, most = next.num_tokens - skip;
  if (rest && most > 0) KV(ask_for)(next.from, next.offsets + skip, rest < most ? rest : most, size);
}

/* Prefetches head `h`'s share of these tokens, whole ones: all prefetches at once would wait for one another. */
INLINE void KV(ask_share)(KV(stretch) here, KV(stretch) next, int j, int num_tokens, int64_t h, int64_t num_heads,
                          int64_t head_dim) {
  const int begin = (int)(h * num_tokens / num_heads), end = (int)((h + 1) * num_tokens / num_heads);
  if (begin < end) KV(ask_beyond)(here, next, j + begin, end - begin, num_heads * head_dim);
}

/* The queries of an item and the factors of their products with K. */
#if IS_BFLOAT16 && defined(__AVX512BF16__) && IS_CODES
typedef struct {
  int16_t rows[MAX_ITEM_QUERIES * SUMS_SIZE(MAX_HEAD_DIM)];
  float scales[MAX_ITEM_QUERIES];
} KV(decode_queries);
#else
typedef struct {
  const element *rows;
  float scale;
} KV(decode_queries);

INLINE void KV(take_queries)(const element *query, int64_t num_queries, const int head_dim, float scale,
                             KV(decode_queries) *queries) {
  (void)num_queries, (void)head_dim;
  *queries = (KV(decode_queries)){query, scale};
}
#endif

#if IS_BFLOAT16 && defined(__AVX512BF16__) && IS_CODES
#include "decode_codes.h"
#elif IS_BFLOAT16 && defined(__AVX512BF16__)
#include "decode_pairs.h"
#else
/* Vectors of floats as wide as a register; bfloat16 becomes eight floats at a time. */
#if !IS_BFLOAT16 && defined(__AVX512F__)
#define vector wide_lanes
#define VECTOR WIDE_LANES
#define LOAD_QUERY load_wide
#define LOAD_NEAR load_wide
#define SUM_FOUR sum_four_wide
#else
#define vector lanes
#define VECTOR LANES
#define LOAD_QUERY LOAD
#define LOAD_NEAR LOAD_KV
#define SUM_FOUR sum_four
#endif

/* Loads a head of K or V of some tokens for all of its queries; codes and float16 become floats once. Keys beyond `num_keys`
   repeat the first. */
INLINE void KV(widen)(const kv_element *from, const int64_t *offsets, int num_keys, const int head_dim,
                      kv_wide room[NEAR_KEYS][MAX_HEAD_DIM], const kv_wide *near[NEAR_KEYS]) {
  for (int k = 0; k < NEAR_KEYS; k++) {
    const kv_element *mine = from + offsets[k < num_keys ? k : 0];
#if IS_CODES
    SIMD for (int i = 0; i < head_dim; i++) room[k][i] = (float)mine[i];
    near[k] = room[k];
#elif IS_FLOAT16
    widen_float16s(mine, room[k], head_dim);
    near[k] = room[k];
#else
    (void)head_dim, (void)room;
    near[k] = mine;
#endif
  }
}

/* Each key's products are summed in lanes. */
INLINE void KV(score_keys)(const KV(decode_queries) *queries, int64_t first, int64_t num_queries, const kv_element *keys,
                           const int64_t *offsets, int num_keys, const int head_dim, float *scores) {
  const element *query = queries->rows + first * head_dim;
  kv_wide room[NEAR_KEYS][MAX_HEAD_DIM] __attribute__((aligned(LINE_BYTES)));
  const kv_wide *near[NEAR_KEYS];
  KV(widen)(keys, offsets, num_keys, head_dim, room, near);
  for (int64_t q = 0; q < num_queries; q++, query += head_dim, scores += BLOCK) {
    vector sums[NEAR_KEYS] = {0};
    int i = 0;
    for (; i + VECTOR <= head_dim; i += VECTOR)
      for (int k = 0; k < NEAR_KEYS; k++) sums[k] += LOAD_QUERY(query + i) * LOAD_NEAR(near[k] + i);
    SUM_FOUR(sums, scores);
    for (; i < head_dim; i++)
      for (int k = 0; k < NEAR_KEYS; k++) scores[k] += WIDEN(query[i]) * WIDEN_KV(near[k][i]);
    for (int k = 0; k < NEAR_KEYS; k++) scores[k] *= queries->scale;
  }
}

INLINE float KV(round_weights)(float *weights) {
  (void)weights;
  return 1.0f;
}

/* Weights beyond `num_keys` are 0. */
INLINE void KV(add_values)(const float *weights, int j, int64_t num_queries, const kv_element *values,
                           const int64_t *offsets, int num_keys, const int head_dim, float *sums) {
  kv_wide room[NEAR_KEYS][MAX_HEAD_DIM] __attribute__((aligned(LINE_BYTES)));
  const kv_wide *near[NEAR_KEYS];
  KV(widen)(values, offsets, num_keys, head_dim, room, near);
  for (int64_t q = 0; q < num_queries; q++, weights += BLOCK, sums += SUMS_SIZE(head_dim)) {
    int i = 0;
    for (; i + VECTOR <= head_dim; i += VECTOR) {
      vector sum = *(const vector *)(sums + i);
      for (int k = 0; k < NEAR_KEYS; k++) sum += weights[j + k] * LOAD_NEAR(near[k] + i);
      *(vector *)(sums + i) = sum;
    }
    for (; i < head_dim; i++)
      for (int k = 0; k < NEAR_KEYS; k++) sums[i] += weights[j + k] * WIDEN_KV(near[k][i]);
  }
}

INLINE void KV(put_in_order)(float *sums, const int head_dim, float unit) {
  (void)sums, (void)head_dim, (void)unit;
}
#undef vector
#undef VECTOR
#undef LOAD_QUERY
#undef LOAD_NEAR
#undef SUM_FOUR
#endif

/* Multiplies the scores or weights of each key and head by the key's scale for that head. */
INLINE void KV(apply_scales)(const uint16_t *scales, KV(stretch) keys, int64_t num_heads, int64_t queries_a_head,
                             const int head_dim, float *scores) {
#if IS_CODES
  for (int64_t h = 0; h < num_heads; h++) {
    float mine[BLOCK];
    for (int j = 0; j < keys.num_tokens; j++) mine[j] = NAME(scale_at)(scales + h, keys.offsets[j], head_dim);
    for (int64_t q = 0; q < queries_a_head; q++, scores += BLOCK)
      SIMD for (int j = 0; j < keys.num_tokens; j++) scores[j] *= mine[j];
  }
#else
  (void)scales, (void)keys, (void)num_heads, (void)queries_a_head, (void)head_dim, (void)scores;
#endif
}

/* Attends to a split's keys with all queries of `num_heads` heads of a row. It prefetches the tokens `ahead` of the current
   one, those of `next` after the split's V; `ahead` is 0 if they are already in the cache. */
INLINE void KV(attend_split)(const NAME(paged_decode_call) *call, const element *query, KV(stretch) keys,
                             KV(stretch) next, int64_t num_heads, const int head_dim, int ahead, softmax *softmaxes,
                             float *sums) {
  const int64_t queries = call->of.queries_a_head, num_queries = num_heads * queries;
  const int num_keys = keys.num_tokens;
  const KV(stretch) values = {call->of.values, keys.offsets, num_keys};
  float scores[MAX_ITEM_QUERIES * BLOCK], units[MAX_ITEM_QUERIES];
  KV(decode_queries) taken;
  KV(take_queries)(query, num_queries, head_dim, (float)call->of.scale * LOG2_E, &taken);
  for (int j = 0; j < num_keys; j += NEAR_KEYS) {
    const int near = num_keys - j < NEAR_KEYS ? num_keys - j : NEAR_KEYS;
    for (int64_t h = 0; h < num_heads; h++) {
      if (ahead) KV(ask_share)(keys, values, j + ahead, near, h, num_heads, head_dim);
      KV(score_keys)(&taken, h * queries, queries, keys.from + h * head_dim, keys.offsets + j, near, head_dim,
                     scores + h * queries * BLOCK + j);
    }
  }
  KV(apply_scales)(call->of.key_scales, keys, num_heads, queries, head_dim, scores);
  for (int64_t q = 0; q < num_queries; q++) {
    softmaxes[q] = (softmax){-INFINITY, 0.0f};
    if (call->of.softcap != 0.0) cap_scores(scores + q * BLOCK, num_keys, (float)call->of.softcap * LOG2_E);
    take_block(scores + q * BLOCK, num_keys, &softmaxes[q].highest, &softmaxes[q].total);
  }
  KV(apply_scales)(call->of.value_scales, keys, num_heads, queries, head_dim, scores);
  for (int64_t q = 0; q < num_queries; q++) units[q] = KV(round_weights)(scores + q * BLOCK);
  memset(sums, 0, (size_t)(num_queries * SUMS_SIZE(head_dim)) * sizeof(float));
  for (int j = 0; j < num_keys; j += NEAR_KEYS) {
    const int near = num_keys - j < NEAR_KEYS ? num_keys - j : NEAR_KEYS;
    for (int64_t h = 0; h < num_heads; h++) {
      if (ahead) KV(ask_share)(values, next, j + ahead, near, h, num_heads, head_dim);
      KV(add_values)(scores + h * queries * BLOCK, j, queries, values.from + h * head_dim, values.offsets + j, near,
                     head_dim, sums + h * queries * SUMS_SIZE(head_dim));
    }
  }
  for (int64_t q = 0; q < num_queries; q++) KV(put_in_order)(sums + q * SUMS_SIZE(head_dim), head_dim, units[q]);
}

/* Finds the keys of a group of splits, from head `head` on. */
static KV(stretch) KV(find_keys)(const NAME(paged_decode_call) *call, int64_t group, int64_t head, int64_t *offsets) {
  const decode_plan *plan = call->plan;
  const int64_t split = plan->groups[group], row = plan->splits[split].row, start = split_start(plan, split);
  const int num_keys = split_keys(plan, split);
  NAME(find_tokens)(&call->of, plan->page_tables + row * plan->table_stride, head, start, num_keys, offsets);
#if IS_CODES
  for (int j = 0; j < num_keys; j++) {
    const int64_t place = offsets[j] / call->of.head_dim;
    __builtin_prefetch(call->of.key_scales + place, 0, 2);
    __builtin_prefetch(call->of.value_scales + place, 0, 2);
  }
#endif
  return (KV(stretch)){call->of.keys, offsets, num_keys};
}

/* Attends to the keys of a split with its row. */
static void KV(attend_row)(const NAME(paged_decode_call) *call, int64_t split, KV(stretch) keys, KV(stretch) next,
                           int64_t head, int64_t num_heads, int ahead) {
  const int64_t head_dim = call->of.head_dim, queries = call->of.queries_a_head;
  const int64_t row = call->plan->splits[split].row;
  const element *query = (const element *)call->of.query + row * call->of.query_stride + head * queries * head_dim;
  const int64_t place = (split * call->of.num_heads + head) * queries;
  softmax *softmaxes = call->softmaxes + place;
  float *sums = call->sums + place * SUMS_SIZE(head_dim);
  switch (head_dim) {
    case 64: KV(attend_split)(call, query, keys, next, num_heads, 64, ahead, softmaxes, sums); break;
#if !IS_CODES /* only the most common sizes: each takes seconds to compile */
    case 80: KV(attend_split)(call, query, keys, next, num_heads, 80, ahead, softmaxes, sums); break;
    case 96: KV(attend_split)(call, query, keys, next, num_heads, 96, ahead, softmaxes, sums); break;
#endif
    case 128: KV(attend_split)(call, query, keys, next, num_heads, 128, ahead, softmaxes, sums); break;
    default: KV(attend_split)(call, query, keys, next, num_heads, (int)head_dim, ahead, softmaxes, sums);
  }
}

#if IS_BFLOAT16 && defined(__AVX512BF16__) && !IS_CODES
#include "decode_near.h"
#endif

/* Attends to a group's keys with the rows of all its splits except the first, `split`. */
INLINE void KV(attend_others)(const NAME(paged_decode_call) *call, int64_t split, KV(stretch) keys, int64_t head,
                              int64_t num_heads) {
  const decode_split *splits = call->plan->splits;
#if IS_BFLOAT16 && defined(__AVX512BF16__) && !IS_CODES
  if (splits[split].num_sharing > FEW_SHARING) {
    KV(attend_near_rows)(call, splits[split].next, keys, head, num_heads);
    return;
  }
#endif
  while ((split = splits[split].next) != NO_SPLIT) {
    keys.num_tokens = split_keys(call->plan, split);
    KV(attend_row)(call, split, keys, keys, head, num_heads, 0);
  }
}

static void KV(paged_decode_item)(const void *data, int64_t item) {
  const NAME(paged_decode_call) *call = data;
  const decode_plan *plan = call->plan;
  const int64_t num_heads = call->of.num_heads, head_dim = call->of.head_dim;
  /* All splits of some heads come before those of the next heads, so that threads get equal shares of split heads. */
  const int64_t items_a_part = (plan->num_groups + call->groups_an_item - 1) / call->groups_an_item;
  const int64_t head = item / items_a_part * call->heads_an_item, rest = num_heads - head;
  const int64_t count = rest < call->heads_an_item ? rest : call->heads_an_item, size = count * head_dim;
  const int64_t begin = item % items_a_part * call->groups_an_item, beyond = begin + call->groups_an_item;
  const int64_t end = beyond < plan->num_groups ? beyond : plan->num_groups;
  const int tokens_ahead = (int)(AHEAD_BYTES / (size * (int64_t)sizeof(kv_element))) + 1;
  int64_t offsets[2][BLOCK];
  KV(stretch) keys = KV(find_keys)(call, begin, head, offsets[0]), next = keys;
  KV(ask_beyond)(keys, (KV(stretch)){call->of.values, offsets[0], keys.num_tokens}, 0, tokens_ahead, size);
  for (int64_t group = begin; group < end; group++, keys = next) {
    if (group + 1 < end) next = KV(find_keys)(call, group + 1, head, offsets[(group + 1 - begin) % 2]);
    else next.num_tokens = 0;
    const int64_t split = plan->groups[group];
    KV(attend_row)(call, split, keys, next, head, count, tokens_ahead);
    KV(attend_others)(call, split, keys, head, count);
  }
}

#undef KV
#undef kv_element
#undef kv_wide
#undef WIDEN_KV
#undef LOAD_KV
#undef IS_CODES
#undef IS_FLOAT16
