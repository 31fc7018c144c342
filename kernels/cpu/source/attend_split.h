/* Decode attention of some splits and heads over elements, codes of int8 with scales, or float16: a template of all.

   KV(x) is the name of x for a cache of `kv_element`; WIDEN_KV makes a float of one. */

#if IS_BFLOAT16 && defined(__AMX_BF16__) && !IS_CODES
#define KV_ON_TILES 1
#else
#define KV_ON_TILES 0
#endif

/* Tokens in the order in which they are read, some heads of each: those of a block from its key `first`, a multiple of
   NEAR_KEYS, to `end`. Keys before `begin` are not seen. */
typedef struct {
  const kv_element *from;
  const int64_t *offsets;
  int num_tokens, first, begin;
} KV(stretch);

/* The lines that are prefetched next: those of `here` and then of `next`, of which `num_lines` a token are read. */
typedef struct {
  KV(stretch) here, next;
  int token, line, num_lines;
} KV(cursor);

/* From token `ahead` on, but at nothing if it is NOTHING_AHEAD; `size`: elements a token. */
INLINE KV(cursor) KV(begin_at)(KV(stretch) here, KV(stretch) next, int ahead, int64_t size) {
  if (ahead == NOTHING_AHEAD) here.num_tokens = next.num_tokens = ahead = 0;
  return (KV(cursor)){here, next, ahead, 0, ((int)size * (int)sizeof(kv_element) + LINE_BYTES - 1) / LINE_BYTES};
}

/* Prefetches some lines; all at once would wait for one another. */
INLINE void KV(ask_lines)(KV(cursor) *c, int count) {
  for (; count > 0; count--) {
    if (c->token >= c->here.num_tokens) {
      c->token -= c->here.num_tokens;
      c->here = c->next;
      c->next.num_tokens = 0;
      if (c->token >= c->here.num_tokens) return;
    }
    const char *line = (const char *)(c->here.from + c->here.offsets[c->token]) + c->line * LINE_BYTES;
    if (KV_ON_TILES || PREFETCHES_FAR) __builtin_prefetch(line, 0, 2);
    else __builtin_prefetch(line, 0, 0);
    if (++c->line == c->num_lines) c->line = 0, c->token++;
  }
}

/* The lines of four keys that their number of elements in a register takes. */
#define NEAR_LINES (NEAR_KEYS * QUAD_LANES * UNIT * (int)sizeof(kv_element) / LINE_BYTES)

/* Finds the keys of a group of splits, from head `head` on. */
static KV(stretch) KV(find_keys)(const NAME(paged_decode_call) *call, int64_t group, int64_t head, int64_t *offsets) {
  const decode_plan *plan = call->plan;
  const int64_t split = plan->groups[group], row = plan->splits[split].row, start = split_start(plan, split);
  const int begin = (int)(start % BLOCK), unseen = begin % NEAR_KEYS, num_keys = split_keys(plan, split);
  NAME(find_tokens)(&call->of, plan->page_tables + row * plan->table_stride, head, start, num_keys, offsets + unseen);
  for (int j = 0; j < unseen; j++) offsets[j] = offsets[unseen]; /* the pages of earlier keys may be another row's */
#if IS_CODES
  for (int j = 0; j < unseen + num_keys; j++) {
    const int64_t place = offsets[j] / call->of.head_dim;
    __builtin_prefetch(call->of.key_scales + place, 0, 2);
    __builtin_prefetch(call->of.value_scales + place, 0, 2);
  }
#endif
  return (KV(stretch)){call->of.keys, offsets, unseen + num_keys, begin - unseen, begin};
}

/* The keys of a split in a group whose keys are `keys`. */
INLINE KV(stretch) KV(keys_of)(const NAME(paged_decode_call) *call, int64_t split, KV(stretch) keys) {
  keys.num_tokens = keys.begin - keys.first + split_keys(call->plan, split);
  return keys;
}

/* The place of the first query of a row's or split's head. */
INLINE int64_t KV(place_of)(const NAME(paged_decode_call) *call, int64_t split, int64_t head) {
  return (split * call->of.num_heads + head) * call->of.queries_a_head;
}

#if KV_ON_TILES
#define HAS_TURNED 1
#include "decode_tiles.h"
#else
#if IS_BFLOAT16 && defined(__AVX512BF16__) && IS_CODES
#define HAS_TURNED 0
#include "decode_codes.h"
#elif IS_BFLOAT16 && defined(__AVX512BF16__)
#define HAS_TURNED 1 /* K is turned, as turn_keys does */
#include "decode_pairs.h"
#else
#define HAS_TURNED 1
#include "decode_floats.h"
#endif

#if HAS_TURNED
#define QUERY_BYTES(head_dim) (TURNED_QUADS(head_dim) * (int64_t)sizeof(quads))

INLINE void KV(turn_all)(const kv_element *keys, const int64_t *offsets, int num_keys, const int head_dim, quads *turned) {
  for (int i = 0; i < head_dim; i += UNIT * QUAD_LANES, turned += 4) KV(turn_keys)(keys, offsets, num_keys, i, head_dim, turned);
}

/* Scores of a query with the first `num_keys` of turned keys, padded to a multiple of 4 * NEAR_CHAINS: the additions
   of one chain wait for one another. */
INLINE void KV(score_near)(const quads *query, const quads *turned, int num_keys, const int head_dim, float *scores) {
  for (int j = 0; j < num_keys; j += 4 * NEAR_CHAINS, turned += NEAR_CHAINS * TURNED_QUADS(head_dim)) {
    quads sums[NEAR_CHAINS] = {{0}};
    for (int n = 0; n < TURNED_QUADS(head_dim); n++)
      for (int f = 0; f < NEAR_CHAINS; f++) sums[f] = KV(add_products)(sums[f], query[n], turned[f * TURNED_QUADS(head_dim) + n]);
    for (int f = 0; f < NEAR_CHAINS; f += 4) sum_four_fours(sums + f, scores + j + 4 * f);
  }
}

/* Scores of four keys with a few queries, which is a constant; the queries' scores are BLOCK apart. */
INLINE void KV(score_queries)(const quads *query, const int num_queries, const kv_element *keys, const int64_t *offsets,
                              int num_keys, const int head_dim, KV(cursor) *ahead, float *scores) {
  quads sums[4] = {{0}};
  for (int i = 0, n = 0; i < head_dim; i += UNIT * QUAD_LANES, n += 4) {
    quads near[4];
    KV(turn_keys)(keys, offsets, num_keys, i, head_dim, near);
    KV(ask_lines)(ahead, NEAR_LINES);
    for (int t = 0; t < 4; t++)
      for (int q = 0; q < num_queries; q++) sums[q] = KV(add_products)(sums[q], query[q * TURNED_QUADS(head_dim) + n + t], near[t]);
  }
  for (int q = 0; q < num_queries; q++) sum_fours(sums[q], scores + q * BLOCK);
}

/* Scores of four keys with the queries of their head. */
INLINE void KV(score_keys)(const decode_queries *queries, int64_t first, int64_t num_queries, const kv_element *keys,
                           const int64_t *offsets, int num_keys, const int head_dim, KV(cursor) *ahead, float *scores) {
  const quads *query = (const quads *)queries->rows + first * TURNED_QUADS(head_dim);
  for (; num_queries > 0; num_queries -= 4, query += 4 * TURNED_QUADS(head_dim), scores += 4 * BLOCK)
    switch (num_queries) {
      case 1: KV(score_queries)(query, 1, keys, offsets, num_keys, head_dim, ahead, scores); break;
      case 2: KV(score_queries)(query, 2, keys, offsets, num_keys, head_dim, ahead, scores); break;
      case 3: KV(score_queries)(query, 3, keys, offsets, num_keys, head_dim, ahead, scores); break;
      default: KV(score_queries)(query, 4, keys, offsets, num_keys, head_dim, ahead, scores);
    }
}
#else
#define QUERY_BYTES(head_dim) (PADDED_DIM(head_dim) * (int64_t)sizeof(int16_t))
#endif

#if !IS_FLOAT16
/* Prepares the queries of a row for score_keys. */
static void KV(prepare_row)(const void *data, int64_t row) {
  const NAME(paged_decode_call) *call = data;
  const int64_t num_queries = call->of.num_heads * call->of.queries_a_head, head_dim = call->of.head_dim;
  const element *query = (const element *)call->of.query + row * call->of.query_stride;
  for (int64_t q = row * num_queries; q < (row + 1) * num_queries; q++, query += head_dim)
    call->scales[q] = KV(prepare_query)(query, (int)head_dim, (float)call->of.scale * LOG2_E, call->queries + q * QUERY_BYTES(head_dim));
}
#endif

/* Multiplies the scores or weights of each key and head, from the `head`-th of the keys' on, by the key's scale for it. */
INLINE void KV(apply_scales)(const uint16_t *scales, int64_t head, KV(stretch) keys, int64_t num_heads,
                             int64_t queries_a_head, const int head_dim, float *scores) {
#if IS_CODES
  scales += head;
  for (int64_t h = 0; h < num_heads; h++) {
    float mine[BLOCK];
    for (int j = 0; j < keys.num_tokens; j++) mine[j] = NAME(scale_at)(scales + h, keys.offsets[j], head_dim);
    for (int64_t q = 0; q < queries_a_head; q++, scores += BLOCK)
      SIMD for (int j = 0; j < keys.num_tokens; j++) scores[keys.first + j] *= mine[j];
  }
#else
  (void)scales, (void)head, (void)keys, (void)num_heads, (void)queries_a_head, (void)head_dim, (void)scores;
#endif
}

/* Attends to a split's keys with all queries of `num_heads` heads of a row, from the call's query `first` on. It prefetches
   the tokens `ahead` of the current one, those of `next` after the split's V, or none with NOTHING_AHEAD.
   `turned`: all of the keys, of one head; or null. */
INLINE void KV(attend_split)(const NAME(paged_decode_call) *call, int64_t first, KV(stretch) keys, KV(stretch) next,
                             int64_t num_heads, const int head_dim, int ahead, const quads *turned, softmax *softmaxes,
                             float *sums) {
  const int64_t queries = call->of.queries_a_head, num_queries = num_heads * queries;
  const int64_t shift = keys.from - (const kv_element *)call->of.keys;
  const int num_keys = keys.num_tokens, end = keys.first + num_keys;
  const KV(stretch) values = {(const kv_element *)call->of.values + shift, keys.offsets, num_keys, keys.first, keys.begin};
  const decode_queries taken = {call->queries + first * QUERY_BYTES(head_dim), call->scales + first};
  float scores[(MAX_ITEM_QUERIES + 1) * BLOCK] __attribute__((aligned(LINE_BYTES))), units[MAX_ITEM_QUERIES];
  KV(cursor) cursor = KV(begin_at)(keys, values, ahead, num_heads * head_dim);
  for (int j = 0; j < num_keys && !turned; j += NEAR_KEYS)
    for (int64_t h = 0; h < num_heads; h++)
      KV(score_keys)(&taken, h * queries, queries, keys.from + h * head_dim, keys.offsets + j, num_keys - j, head_dim, &cursor,
                     scores + h * queries * BLOCK + keys.first + j);
#if HAS_TURNED
  for (int64_t q = 0; q < num_queries && turned; q++)
    KV(score_near)((const quads *)taken.rows + q * TURNED_QUADS(head_dim), turned, num_keys, head_dim, scores + q * BLOCK + keys.first);
#endif
  KV(apply_scales)(call->of.key_scales, shift / head_dim, keys, num_heads, queries, head_dim, scores);
  for (int64_t q = 0; q < num_queries; q++) {
    float *mine = scores + q * BLOCK;
    const float rate = KV(rate)((float)call->of.scale * LOG2_E);
    if (call->of.softcap != 0.0) cap_scores(mine + keys.begin, end - keys.begin, (float)call->of.softcap * LOG2_E / rate);
    softmaxes[q] = KV(weigh)(mine, keys.begin, end, rate);
  }
  KV(apply_scales)(call->of.value_scales, shift / head_dim, keys, num_heads, queries, head_dim, scores);
  for (int64_t q = 0; q < num_queries; q++) units[q] = KV(round_weights)(scores + q * BLOCK);
  memset(sums, 0, (size_t)(num_queries * PADDED_DIM(head_dim)) * sizeof(float));
  cursor = KV(begin_at)(values, next, ahead, num_heads * head_dim);
  for (int j = 0; j < num_keys; j += NEAR_KEYS)
    for (int64_t h = 0; h < num_heads; h++)
      KV(add_values)(scores + h * queries * BLOCK, keys.first + j, queries, values.from + h * head_dim, keys.offsets + j, num_keys - j,
                     head_dim, &cursor, sums + h * queries * PADDED_DIM(head_dim));
  for (int64_t q = 0; q < num_queries; q++) KV(put_in_order)(sums + q * PADDED_DIM(head_dim), head_dim, units[q]);
}

/* Attends to the keys of a split with its row. */
static void KV(attend_row)(const NAME(paged_decode_call) *call, int64_t split, KV(stretch) keys, KV(stretch) next,
                           int64_t head, int64_t num_heads, int ahead) {
  const int64_t head_dim = call->of.head_dim, place = KV(place_of)(call, split, head);
  const int64_t query = KV(place_of)(call, call->plan->splits[split].row, head);
  softmax *softmaxes = call->softmaxes + place;
  float *sums = call->sums + place * PADDED_DIM(head_dim);
  switch (head_dim) {
    case 64: KV(attend_split)(call, query, keys, next, num_heads, 64, ahead, 0, softmaxes, sums); break;
#if !IS_CODES /* only the most common sizes: each takes seconds to compile */
    case 80: KV(attend_split)(call, query, keys, next, num_heads, 80, ahead, 0, softmaxes, sums); break;
    case 96: KV(attend_split)(call, query, keys, next, num_heads, 96, ahead, 0, softmaxes, sums); break;
#endif
    case 128: KV(attend_split)(call, query, keys, next, num_heads, 128, ahead, 0, softmaxes, sums); break;
    default: KV(attend_split)(call, query, keys, next, num_heads, (int)head_dim, ahead, 0, softmaxes, sums);
  }
}

#if HAS_TURNED
#if IS_BFLOAT16 && defined(__AVX512BF16__)
#include "decode_near.h"
#else
/* Attends to a group's keys with all of its splits from `first_split` on, head after head; the keys are turned once. */
INLINE void KV(attend_heads)(const NAME(paged_decode_call) *call, int64_t first_split, KV(stretch) keys, int64_t head,
                             int64_t num_heads, const int head_dim) {
  quads turned[BLOCK / NEAR_KEYS * TURNED_QUADS(MAX_HEAD_DIM)];
  for (; num_heads > 0; num_heads--, head++, keys.from += head_dim) {
    for (int j = 0; j < keys.num_tokens; j += NEAR_KEYS)
      KV(turn_all)(keys.from, keys.offsets + j, keys.num_tokens - j, head_dim, turned + j / NEAR_KEYS * TURNED_QUADS(head_dim));
    for (int64_t split = first_split; split != NO_SPLIT; split = call->plan->splits[split].next) {
      const KV(stretch) mine = KV(keys_of)(call, split, keys);
      const int64_t query = KV(place_of)(call, call->plan->splits[split].row, head), place = KV(place_of)(call, split, head);
      KV(attend_split)(call, query, mine, mine, 1, head_dim, NOTHING_AHEAD, turned, call->softmaxes + place, call->sums + place * PADDED_DIM(head_dim));
    }
  }
}
#endif

/* Attends to a group's keys with the rows of all splits from `split` on. */
static void KV(attend_near_rows)(const NAME(paged_decode_call) *call, int64_t split, KV(stretch) keys, int64_t head,
                                 int64_t num_heads) {
  switch (call->of.head_dim) {
    case 64: KV(attend_heads)(call, split, keys, head, num_heads, 64); break;
    case 128: KV(attend_heads)(call, split, keys, head, num_heads, 128); break;
    default: KV(attend_heads)(call, split, keys, head, num_heads, (int)call->of.head_dim);
  }
}
#endif

#endif

/* Attends to a group's keys with the rows of all its splits except the first, `split`. */
INLINE void KV(attend_others)(const NAME(paged_decode_call) *call, int64_t split, KV(stretch) keys, int64_t head,
                              int64_t num_heads) {
  const decode_split *splits = call->plan->splits;
#if HAS_TURNED
  if (splits[split].num_sharing > FEW_SHARING) {
    KV(attend_near_rows)(call, splits[split].next, keys, head, num_heads);
    return;
  }
#endif
  while ((split = splits[split].next) != NO_SPLIT) {
    const KV(stretch) mine = KV(keys_of)(call, split, keys);
    KV(attend_row)(call, split, mine, mine, head, num_heads, NOTHING_AHEAD);
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
  const int tokens_ahead = (int)(AHEAD_BYTES / (size * (int64_t)sizeof(kv_element))) + (KV_ON_TILES ? TILE_KEYS : 0) + 1;
  int64_t offsets[2][BLOCK];
#if KV_ON_TILES
  tile_settings before;
  use_decode_tiles(tile_queries(call->of.queries_a_head), &before);
#endif
  KV(stretch) keys = KV(find_keys)(call, begin, head, offsets[0]), next = keys;
  KV(cursor) cursor = KV(begin_at)(keys, (KV(stretch)){call->of.values, offsets[0], keys.num_tokens, 0, 0}, 0, size);
  KV(ask_lines)(&cursor, tokens_ahead * cursor.num_lines);
  for (int64_t group = begin; group < end; group++, keys = next) {
    if (group + 1 < end) next = KV(find_keys)(call, group + 1, head, offsets[(group + 1 - begin) % 2]);
    else next.num_tokens = 0;
    const int64_t split = plan->groups[group];
    KV(attend_row)(call, split, keys, next, head, count, tokens_ahead);
    KV(attend_others)(call, split, keys, head, count);
  }
#if KV_ON_TILES
  leave_tiles(&before);
#endif
}

#undef QUERY_BYTES
#undef HAS_TURNED
#undef KV_ON_TILES
#undef NEAR_LINES
#undef KV
#undef kv_element
#undef WIDEN_KV
#undef IS_CODES
#undef IS_FLOAT16
