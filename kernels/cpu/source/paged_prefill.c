/* Causal attention of rows with many new tokens each: see kernels/operations/paged_prefill.py.

   An item is (row, tile of up to MAX_QUERIES queries that share a key/value head, that head). Blocks of keys begin at
   multiples of BLOCK, so a token's result depends only on its row. FlashAttention: Dao et al., 2022. */

#ifndef SLUICE_PADDED
#define SLUICE_PADDED
#define NUM_GROUPS(num_queries) (((num_queries) + QUERY_STRIDE - 1) / QUERY_STRIDE)
#define KEY_LINES(bytes) (((int64_t)(bytes) + LINE_BYTES - 1) / LINE_BYTES)

/* What the cache holds. With FLOAT16 the elements are float32. */
typedef enum { ELEMENTS, CODES, FLOAT16 } cached_form;

/* The row of a tile. first_tile: [num_rows + 1]. */
INLINE int64_t find_row(const int64_t *first_tile, int64_t num_rows, int64_t tile) {
  int64_t row = 0, beyond = num_rows;
  while (beyond - row > 1) {
    const int64_t middle = (row + beyond) / 2;
    if (first_tile[middle] <= tile) row = middle;
    else beyond = middle;
  }
  return row;
}
#endif

INLINE cached_form NAME(form_of)(const NAME(paged_decode_arguments) *cache) {
  return cache->key_scales ? CODES : cache->is_float16 ? FLOAT16 : ELEMENTS;
}

typedef struct {
  NAME(paged_decode_arguments) of;
  int64_t tokens_a_tile;
  const int64_t *first_tile, *first_token; /* [rows + 1] */
} NAME(paged_prefill_call);

/* The working memory of an item. Queries are columns, so that 16 are computed at once, in groups of QUERY_STRIDE: `query` and
   `sums` are [groups, head dimension, QUERY_STRIDE]; scores and weights are those of one group. */
typedef struct {
  packed keys[BLOCK * MAX_HEAD_DIM], values[BLOCK * MAX_HEAD_DIM];
  packed_step query[(1 + ON_TILES) * MAX_HEAD_DIM / STEP * MAX_QUERIES];
#if STEP == 1
  union {
    float scores[BLOCK * QUERY_STRIDE], weights[BLOCK * QUERY_STRIDE]; /* a weight takes its score's place */
  };
#else
  packed_step weights[(1 + ON_TILES) * BLOCK / STEP * QUERY_STRIDE];
  float scores[BLOCK * QUERY_STRIDE];
#endif
  float sums[MAX_HEAD_DIM * MAX_QUERIES], level[MAX_QUERIES], total[MAX_QUERIES];
  float query_scales[MAX_QUERIES];                                  /* of codes */
  float keep[QUERY_STRIDE], add[QUERY_STRIDE], units[QUERY_STRIDE]; /* of one group and block */
  float key_scales[BLOCK], value_scales[BLOCK];
  int32_t last_seen[MAX_QUERIES];                                   /* the last key that a query sees, mostly its own */
  uint32_t num_seen[MAX_QUERIES];                                   /* the keys that it sees: those up to the last one */
  int64_t offsets[BLOCK];
  int first_line, end_line; /* the lines that a group prefetches, see ask_ahead */
  int value_dim;            /* of `sums`: padded, it may be less than that of K */
} __attribute__((aligned(64))) NAME(prefill_scratch);

#if STEP == 2
#include "prefill_vectors.h"
#else
#include "prefill_floats.h"
#endif

#define CACHED_BYTES(cache) (int64_t)((cache)->key_scales ? 1 : (cache)->is_float16 ? 2 : sizeof(element))

/* Prefetches some lines of each of TILE_ROWS keys of the next block, of K and then of V: the processor cannot predict where
   they are, and drops prefetches that are made all at once. */
INLINE void NAME(ask_ahead)(const NAME(paged_decode_arguments) *cache, int key, const NAME(prefill_scratch) *s) {
  const int64_t size = CACHED_BYTES(cache), num_lines = KEY_LINES(cache->head_dim * size);
  for (int64_t line = s->first_line; line < s->end_line; line++) {
    const char *from = line < num_lines ? (const char *)cache->keys + line * LINE_BYTES
                                        : (const char *)cache->values + (line - num_lines) * LINE_BYTES;
    for (int j = 0; j < TILE_ROWS; j++) __builtin_prefetch(from + s->offsets[key + j] * size, 0, 2);
  }
}

/* Caps the scores of 16 queries; `rate` is what soften multiplies them by. */
INLINE void NAME(cap_block)(const NAME(paged_decode_arguments) *cache, float rate, int query, int num_keys, NAME(prefill_scratch) *s) {
  const float cap = (float)cache->softcap * LOG2_E / rate;
  for (int j = 0; j < num_keys; j++) cap_scores(s->scores + j * QUERY_STRIDE + query % QUERY_STRIDE, 16, cap);
}

/* Adds V of a block's keys to the sums of a group's queries, of which vector v sees keys up to ends[v + 1]. */
INLINE void NAME(add_block)(int group, int vectors, const int *ends, int padded_dim, const product_kind kind,
                            NAME(prefill_scratch) *s) {
  float *sums = s->sums + column_of(group, s->value_dim);
  const int together = ends[1] == ends[vectors] ? vectors : 1;
  for (int v = 0; v < vectors; v += together) {
    const block_factors factors = {s->keep + 16 * v, s->add + 16 * v, s->units + 16 * v};
    if (ends[v + 1])
      NAME(tile_product)
      (s->values, VALUES_ROW, VALUES_STEP(padded_dim), s->weights + 16 * v, sums + 16 * v, s->value_dim, ends[v + 1] / STEP,
       together, kind, &factors);
  }
}

/* Attends with a group's `num_queries` queries to the block of keys from the row's `first` on. Each vector of queries takes
   the keys that its last query sees, more from vector to vector if the block holds later tokens. */
INLINE void NAME(attend_block)(const NAME(paged_decode_arguments) *cache, float scale, int group, int num_queries, int64_t first,
                               int padded_dim, const cached_form form, NAME(prefill_scratch) *s) {
  enum { MOST_VECTORS = QUERY_STRIDE / 16 };
  const int vectors = (num_queries + 15) / 16, has_integers = STEP == 2 && form == CODES;
  const float rate = has_integers ? 1.0f : scale;
  int ends[MOST_VECTORS + 1] = {0};
  for (int v = 0; v < vectors; v++) {
    const int64_t num_seen = s->last_seen[group + 16 * v + 15] + 1 - first;
    ends[v + 1] = num_seen >= BLOCK ? BLOCK : num_seen > 0 ? ((int)num_seen + ENDS_STEP - 1) / ENDS_STEP * ENDS_STEP : 0;
  }
  const packed_step *query = s->query + column_of(group, padded_dim / STEP);
  for (int v = 0; v < vectors; v++)
    for (int j = ends[v]; j < ends[v + 1]; j += TILE_ROWS) {
      NAME(ask_ahead)(cache, j, s);
      NAME(tile_product)
      (s->keys + j * padded_dim, padded_dim, STEP, query + 16 * v, s->scores + j * QUERY_STRIDE + 16 * v, TILE_ROWS,
       padded_dim / STEP, vectors - v, has_integers ? CODE_SCORES : SCORES, 0);
    }
  for (int v = 0; v < vectors; v++) {
    const int mine = group + 16 * v, num_keys = ends[v + 1];
    const int sees_all = first + num_keys <= s->last_seen[mine] + 1 && first > s->last_seen[mine + 15] - cache->window;
    if (num_keys && form == CODES) NAME(scale_scores)(mine, num_keys, s);
    if (num_keys && cache->softcap != 0.0) NAME(cap_block)(cache, rate, mine, num_keys, s);
    if (num_keys && sees_all) NAME(soften)(rate, mine, num_keys, first, 0, form == CODES, s);
    else if (num_keys) NAME(soften)(rate, mine, num_keys, first, 1, form == CODES, s);
  }
  NAME(add_block)(group, vectors, ends, padded_dim, has_integers ? CODE_VALUES : VALUES, s);
}

/* Sets the scales of the block's keys, 0 beyond `num_keys`. */
INLINE void NAME(find_scales)(const NAME(paged_decode_arguments) *cache, int num_keys, NAME(prefill_scratch) *s) {
  for (int j = 0; j < BLOCK; j++) {
    s->key_scales[j] = j < num_keys ? NAME(scale_at)(cache->key_scales, s->offsets[j], cache->head_dim) : 0.0f;
    s->value_scales[j] = j < num_keys ? NAME(scale_at)(cache->value_scales, s->offsets[j], cache->head_dim) : 0.0f;
  }
}

/* Packs a block of latents of codes, which are elements then. */
static void NAME(pack_latent_codes)(const NAME(paged_decode_arguments) *cache, int num_keys, int padded_dim, NAME(prefill_scratch) *s) {
  const int64_t head_dim = cache->head_dim, rotated = cache->rotated_dim, rank = head_dim - rotated;
  element latents[BLOCK * MAX_HEAD_DIM];
  NAME(paged_decode_arguments) plain = *cache;
  plain.keys = plain.values = latents;
  for (int j = 0; j < num_keys; j++) {
    const int64_t slot = s->offsets[j] / head_dim;
    const int8_t *codes = (const int8_t *)cache->keys + slot * (rank + 2 * rotated);
    const float scale = widen_bfloat16(cache->latent_scales[slot]);
    element *latent = latents + j * head_dim;
    SIMD for (int64_t d = 0; d < rank; d++) latent[d] = NARROW((float)codes[d] * scale);
    for (int64_t d = 0; d < rotated; d++) {
      uint16_t mine;
      memcpy(&mine, codes + rank + 2 * d, sizeof mine);
      latent[rank + d] = NARROW(widen_bfloat16(mine));
    }
    s->offsets[j] = j * head_dim;
  }
  NAME(pack_block)(&plain, num_keys, padded_dim, ELEMENTS, s);
}

/* Attends to the keys from `first_seen` up to `num_keys`, block after block, each with all groups of queries. */
static void NAME(attend_keys)(const NAME(paged_decode_arguments) *cache, const int32_t *pages, int64_t head, float scale,
                              int num_queries, int64_t first_seen, int64_t num_keys, int padded_dim,
                              NAME(prefill_scratch) *s) {
  const int num_groups = NUM_GROUPS(num_queries), num_parts = cache->values == cache->keys ? 1 : 2;
  const int num_lines = num_parts * (int)KEY_LINES(cache->head_dim * CACHED_BYTES(cache));
  const int64_t begin = first_seen / BLOCK * BLOCK;
  int here = num_keys - begin < BLOCK ? (int)(num_keys - begin) : BLOCK;
  NAME(find_tokens)(cache, pages, head, begin, here, s->offsets);
  /* No query sees the keys before; their pages may be another row's, so one of the row's own is read in their place. */
  for (int64_t j = 0; j < first_seen - begin; j++) s->offsets[j] = s->offsets[first_seen - begin];
  for (int64_t first = begin; first < num_keys; first += BLOCK) {
    switch (NAME(form_of)(cache)) {
      case ELEMENTS:
        if (cache->latent_scales) NAME(pack_latent_codes)(cache, here, padded_dim, s);
        else NAME(pack_block)(cache, here, padded_dim, ELEMENTS, s);
        break;
      case CODES:
        NAME(pack_block)(cache, here, padded_dim, CODES, s);
        NAME(find_scales)(cache, here, s);
        break;
      case FLOAT16:
        if (STEP == 1) NAME(pack_block)(cache, here, padded_dim, FLOAT16, s);
    }
    const int64_t rest = num_keys - first - BLOCK;
    here = rest < 0 ? 0 : rest < BLOCK ? (int)rest : BLOCK;
    NAME(find_tokens)(cache, pages, head, first + BLOCK, here, s->offsets);
    for (int group = 0; group < num_groups; group++) {
      const int query = group * QUERY_STRIDE, left = num_queries - query;
      s->first_line = here ? group * num_lines / num_groups : 0;
      s->end_line = here ? (group + 1) * num_lines / num_groups : 0;
      const int count = left < QUERY_STRIDE ? left : QUERY_STRIDE;
      if (cache->key_scales) NAME(attend_block)(cache, scale, query, count, first, padded_dim, CODES, s);
      else NAME(attend_block)(cache, scale, query, count, first, padded_dim, ELEMENTS, s);
    }
  }
}

static void NAME(paged_prefill_item)(const void *data, int64_t item) {
  const NAME(paged_prefill_call) *call = data;
  const int64_t num_heads = call->of.num_heads, head_dim = call->of.head_dim, queries = call->of.queries_a_head;
  /* A head's tiles follow one another, as they read the same K and V; those at a row's end see the most keys and come
     first. */
  const int64_t num_tiles = call->first_tile[call->of.num_rows], head = item / num_tiles;
  const int64_t tile = num_tiles - 1 - item % num_tiles;
  const int64_t row = find_row(call->first_tile, call->of.num_rows, tile);
  const int64_t start = (tile - call->first_tile[row]) * call->tokens_a_tile, rest = call->of.query_lens[row] - start;
  const int num_tokens = (int)(rest < call->tokens_a_tile ? rest : call->tokens_a_tile);
  const int num_queries = num_tokens * (int)queries, padded_dim = PADDED_DIM((int)head_dim);
  const int64_t position = call->of.context_lens[row] + start, token = call->first_token[row] + start;
  const int32_t *last_keys = call->of.last_keys ? call->of.last_keys + token : 0;
  const element *query = (const element *)call->of.query + token * call->of.query_stride + head * queries * head_dim;
  NAME(prefill_scratch) scratch, *s = &scratch;
  memset(s->sums, 0, sizeof(float) * (size_t)(padded_dim * QUERY_STRIDE * NUM_GROUPS(num_queries)));
  for (int q = 0; q < MAX_QUERIES; q++) {
    /* The padding of the last vector has the position of the last query. */
    const int64_t own = q < num_queries ? q / queries : num_tokens - 1, last = last_keys ? last_keys[own] : position + own;
    s->last_seen[q] = (int32_t)last;
    s->num_seen[q] = (uint32_t)(call->of.window + last - position - own);
    /* A sink counts as a first key without a value. */
    const float *sink = q < num_queries && call->of.sinks ? call->of.sinks + head * queries + q % queries : 0;
    s->level[q] = sink ? *sink * LOG2_E : LOWEST;
    s->total[q] = sink ? 1.0f : 0.0f;
  }
  const int64_t num_keys = s->last_seen[MAX_QUERIES - 1] + 1;
  const float scale = (float)call->of.scale * LOG2_E;
  if (STEP == 2 && call->of.key_scales) NAME(pack_query_codes)(query, call->of.query_stride, (int)queries, num_queries, (int)head_dim, scale, s);
  else NAME(pack_queries)(query, call->of.query_stride, (int)queries, num_queries, (int)head_dim, s);
  const int32_t *pages = call->of.page_tables + row * call->of.table_stride;
  const int64_t num_before = (int64_t)s->last_seen[0] + 1 - s->num_seen[0];
  s->value_dim = padded_dim;
#if ON_TILES
  tile_settings before;
  use_tiles(&before);
#endif
  NAME(attend_keys)
  (&call->of, pages, head, scale, num_queries, num_before > 0 ? num_before : 0, num_keys, padded_dim, s);
#if ON_TILES
  leave_tiles(&before);
#endif
  element *out = (element *)call->of.out + (token * num_heads + head) * queries * head_dim;
  NAME(unpack_sums)(s, num_queries, (int)queries, (int)head_dim, out, num_heads * queries * head_dim);
}

/* Runs an item for each tile and head. Without `context_lens` rows have no earlier tokens. Returns 0, or -1 without memory. */
static int NAME(run_tiles)(const NAME(paged_decode_arguments) *of, item_fn run_item) {
  const int64_t num_rows = of->num_rows;
  const int32_t *query_lens = of->query_lens, *context_lens = of->context_lens;
  if (num_rows == 0) return 0;
  int64_t *firsts = malloc((size_t)(2 * (num_rows + 1)) * sizeof *firsts);
  if (!firsts) return -1;
  int64_t *first_tile = firsts, *first_token = firsts + num_rows + 1, num_scores = 0;
  const int64_t tokens_a_tile = MAX_QUERIES / of->queries_a_head;
  first_tile[0] = first_token[0] = 0;
  for (int64_t row = 0; row < num_rows; row++) {
    first_tile[row + 1] = first_tile[row] + (query_lens[row] + tokens_a_tile - 1) / tokens_a_tile;
    first_token[row + 1] = first_token[row] + query_lens[row];
    num_scores += (int64_t)query_lens[row] * ((context_lens ? context_lens[row] : 0) + query_lens[row]);
  }
  const NAME(paged_prefill_call) call = {*of, tokens_a_tile, first_tile, first_token};
  run_ordered_items(BY_TURNS, first_tile[num_rows] * of->num_heads, num_scores * of->num_heads * of->head_dim / 16,
                    run_item, &call);
  free(firsts);
  return 0;
}

/* The query holds the tokens of all rows, one row after another. Returns 0, or -1 without memory. */
PUBLIC int NAME(paged_prefill)(const NAME(paged_decode_arguments) *of) {
  return NAME(run_tiles)(of, NAME(paged_prefill_item));
}
#undef CACHED_BYTES
