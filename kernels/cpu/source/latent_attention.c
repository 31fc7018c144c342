/* Attention to latents: see kernels/operations/latent_attention.py. All heads of a token attend to the same latents, so they
   are the queries of one head of attention, whose values are the first part of its keys.

   An item is a tile of queries, those of all heads of some tokens of a row, with all keys of the row or with a split of them.
   The order of sums is that of paged_kv.h within a split. The sums of splits, each begun at 0, are merged in ascending order,
   whether an item has one split or all. Where splits end follows from positions alone. So a token has the same bits however it
   is computed, and few tokens of a long row keep all threads busy. */

#ifndef SLUICE_LATENT_ATTENTION
#define SLUICE_LATENT_ATTENTION
enum {
  SHORT_SPLIT = 256, NUM_SHORT = 16, LONG_SPLIT = 1024, /* keys of the first splits, and of those after them */
  COLUMNS = 16,      /* queries that are merged together */
  MOST_PARTIALS = 1 << 26 /* floats */
};

static int64_t latent_split_begin(int64_t split) {
  return split <= NUM_SHORT ? split * SHORT_SPLIT : NUM_SHORT * SHORT_SPLIT + (split - NUM_SHORT) * LONG_SPLIT;
}

static int64_t count_latent_splits(int64_t num_keys) {
  const int64_t more = num_keys - NUM_SHORT * SHORT_SPLIT;
  return more <= 0 ? (num_keys + SHORT_SPLIT - 1) / SHORT_SPLIT : NUM_SHORT + (more + LONG_SPLIT - 1) / LONG_SPLIT;
}

/* Some tokens of a row: their place in the step, and the position of the first. */
typedef struct {
  int64_t row, token, position, num_tokens, num_splits, first_part;
} latent_tile;
#endif

typedef struct {
  NAME(latent_decode_arguments) of;
  NAME(paged_decode_arguments) cache; /* as one head, whose values are its keys */
  latent_tile *tiles;
  int64_t num_tiles, num_parts, part_size;
  float *partials; /* [parts, part_size]: by vector of columns, levels, totals and sums; null if items are whole tiles */
} NAME(latent_call);

/* The sums of a vector of columns over some splits. */
typedef struct {
  float level[COLUMNS], total[COLUMNS], sums[PADDED_DIM(MAX_HEAD_DIM) * COLUMNS];
} NAME(latent_sums);

INLINE int64_t NAME(latent_columns)(const NAME(latent_call) *call, const latent_tile *tile) {
  return (tile->num_tokens * call->of.num_heads + COLUMNS - 1) / COLUMNS;
}

/* Adds the sums of the next split, with rows `stride` apart. */
static void NAME(merge_latents)(NAME(latent_sums) *all, const float *level, const float *total, const float *sums, int64_t stride,
                                int64_t size) {
  float keep[COLUMNS], add[COLUMNS];
  SIMD for (int c = 0; c < COLUMNS; c++) {
    const float highest = level[c] > all->level[c] ? level[c] : all->level[c];
    keep[c] = power_of_2(all->level[c] - highest);
    add[c] = power_of_2(level[c] - highest);
    all->total[c] = fused(all->total[c], keep[c], total[c] * add[c]);
    all->level[c] = highest;
  }
  for (int64_t d = 0; d < size; d++)
    SIMD for (int c = 0; c < COLUMNS; c++)
      all->sums[d * COLUMNS + c] = fused(all->sums[d * COLUMNS + c], keep[c], sums[d * stride + c] * add[c]);
}

static void NAME(begin_latents)(NAME(latent_sums) *all, int64_t size) {
  memset(all, 0, offsetof(NAME(latent_sums), sums) + sizeof(float) * (size_t)(size * COLUMNS));
  for (int c = 0; c < COLUMNS; c++) all->level[c] = LOWEST;
}

/* Writes the outputs of the tile's queries from `column` on. */
static void NAME(end_latents)(const NAME(latent_call) *call, const latent_tile *tile, int64_t column, NAME(latent_sums) *all) {
  const int64_t rank = call->of.rank, num_heads = call->of.num_heads, left = tile->num_tokens * num_heads - column;
  for (int64_t c = 0; c < COLUMNS && c < left; c++) {
    const int64_t head = (column + c) % num_heads, token = tile->token + (column + c) / num_heads;
    element *out = call->of.out + head * call->of.out_stride + token * rank;
    const float inverse = 1.0f / all->total[c];
    for (int64_t d = 0; d < rank; d++) out[d] = NARROW(all->sums[d * COLUMNS + c] * inverse);
  }
}

/* Packs the tile's queries, those of a token next to each other. */
static void NAME(pack_latent_queries)(const NAME(latent_call) *call, const latent_tile *tile, NAME(prefill_scratch) *s) {
  const int64_t rank = call->of.rank, rotated = call->of.rotated_dim, num_heads = call->of.num_heads;
  element *query = (element *)(void *)s->sums, *to = query;
  for (int64_t token = tile->token; token < tile->token + tile->num_tokens; token++)
    for (int64_t head = 0; head < num_heads; head++, to += rank + rotated) {
      memcpy(to, call->of.query + head * call->of.query_stride + token * rank, sizeof(element) * (size_t)rank);
      memcpy(to + rank, call->of.rotated + head * call->of.rotated_stride + token * rotated, sizeof(element) * (size_t)rotated);
    }
  const int num_queries = (int)(tile->num_tokens * num_heads);
  NAME(pack_queries)(query, num_heads * (rank + rotated), (int)num_heads, num_queries, (int)(rank + rotated), s);
}

/* Attends to the keys of a split. */
static void NAME(attend_latents)(const NAME(latent_call) *call, const latent_tile *tile, int64_t split, NAME(prefill_scratch) *s) {
  const int num_queries = (int)(tile->num_tokens * call->of.num_heads);
  const int64_t begin = latent_split_begin(split), num_keys = tile->position + tile->num_tokens;
  const int64_t end = latent_split_begin(split + 1) < num_keys ? latent_split_begin(split + 1) : num_keys;
  memset(s->sums, 0, sizeof(float) * (size_t)(s->value_dim * QUERY_STRIDE * NUM_GROUPS(num_queries)));
  for (int q = 0; q < MAX_QUERIES; q++) s->level[q] = LOWEST, s->total[q] = 0.0f;
  const int32_t *pages = call->of.page_tables + tile->row * call->of.table_stride;
  const float scale = (float)call->of.scale * LOG2_E;
  NAME(attend_keys)(&call->cache, pages, 0, scale, num_queries, begin, end, PADDED_DIM((int)call->cache.head_dim), s);
}

static void NAME(latent_item)(const void *data, int64_t item) {
  const NAME(latent_call) *call = data;
  int64_t index = call->num_tiles - 1 - item % call->num_tiles, split = 0; /* a row's last tiles see the most keys */
  if (call->partials)
    for (index = call->num_tiles - 1; call->tiles[index].first_part > item; index--);
  const latent_tile *tile = call->tiles + index;
  const int64_t size = PADDED_DIM(call->of.rank), num_columns = NAME(latent_columns)(call, tile), num_heads = call->of.num_heads;
  const int num_queries = (int)(tile->num_tokens * num_heads);
  NAME(prefill_scratch) scratch, *s = &scratch;
  NAME(latent_sums) all[MAX_QUERIES / COLUMNS];
  for (int q = 0; q < MAX_QUERIES; q++)
    s->last_seen[q] = (int32_t)(tile->position + (q < num_queries ? q / num_heads : tile->num_tokens - 1)), s->num_seen[q] = INT32_MAX;
  s->value_dim = (int)size;
  NAME(pack_latent_queries)(call, tile, s);
#if ON_TILES
  tile_settings before;
  use_tiles(&before);
#endif
  if (call->partials) {
    split = item - tile->first_part;
    NAME(attend_latents)(call, tile, split, s);
    float *part = call->partials + item * call->part_size;
    for (int64_t v = 0; v < num_columns; v++, part += COLUMNS * (2 + size)) {
      const float *sums = s->sums + column_of((int)(COLUMNS * v), (int)size);
      memcpy(part, s->level + COLUMNS * v, sizeof(float) * COLUMNS);
      memcpy(part + COLUMNS, s->total + COLUMNS * v, sizeof(float) * COLUMNS);
      for (int64_t d = 0; d < size; d++) memcpy(part + COLUMNS * (2 + d), sums + d * QUERY_STRIDE, sizeof(float) * COLUMNS);
    }
  } else {
    for (int64_t v = 0; v < num_columns; v++) NAME(begin_latents)(all + v, size);
    for (; split < tile->num_splits; split++) {
      NAME(attend_latents)(call, tile, split, s);
      for (int64_t v = 0; v < num_columns; v++)
        NAME(merge_latents)
        (all + v, s->level + COLUMNS * v, s->total + COLUMNS * v, s->sums + column_of((int)(COLUMNS * v), (int)size),
         QUERY_STRIDE, size);
    }
    for (int64_t v = 0; v < num_columns; v++) NAME(end_latents)(call, tile, COLUMNS * v, all + v);
  }
#if ON_TILES
  leave_tiles(&before);
#endif
}

/* Merges the splits of a vector of a tile's columns. */
static void NAME(latent_merge_item)(const void *data, int64_t item) {
  const NAME(latent_call) *call = data;
  const int64_t most = MAX_QUERIES / COLUMNS, size = PADDED_DIM(call->of.rank), v = item % most;
  const latent_tile *tile = call->tiles + item / most;
  if (v >= NAME(latent_columns)(call, tile)) return;
  NAME(latent_sums) all;
  NAME(begin_latents)(&all, size);
  for (int64_t split = 0; split < tile->num_splits; split++) {
    const float *part = call->partials + (tile->first_part + split) * call->part_size + v * COLUMNS * (2 + size);
    NAME(merge_latents)(&all, part, part + COLUMNS, part + 2 * COLUMNS, COLUMNS, size);
  }
  NAME(end_latents)(call, tile, COLUMNS * v, &all);
}

/* Adds the tiles of a row. */
static void NAME(add_latent_tiles)(NAME(latent_call) *call, int64_t row, int64_t token, int64_t num_new, int64_t position) {
  const int64_t most = MAX_QUERIES / call->of.num_heads;
  for (int64_t done = 0; done < num_new; done += most) {
    const int64_t count = num_new - done < most ? num_new - done : most, num_splits = count_latent_splits(position + done + count);
    if (call->tiles) call->tiles[call->num_tiles] = (latent_tile){row, token + done, position + done, count, num_splits, call->num_parts};
    call->num_tiles++;
    call->num_parts += num_splits;
  }
}

static void NAME(list_latent_tiles)(NAME(latent_call) *call) {
  const NAME(latent_decode_arguments) *of = &call->of;
  call->num_tiles = call->num_parts = 0;
  for (int64_t row = 0, token = 0; row < of->num_rows; row++) {
    const int64_t num_new = of->num_keys ? 1 : of->query_lens[row];
    const int64_t position = of->num_keys ? of->num_keys[row] - 1 : of->context_lens[row];
    if (position >= 0) NAME(add_latent_tiles)(call, row, token, num_new, position); /* rows of no keys are padding */
    token += num_new;
  }
}

static int NAME(attend_to_latents)(const NAME(latent_decode_arguments) *of) {
  NAME(latent_call) call = {.of = *of};
  NAME(list_latent_tiles)(&call);
  if (!call.num_tiles) return 0;
  call.tiles = malloc((size_t)call.num_tiles * sizeof *call.tiles);
  if (!call.tiles) return -1;
  NAME(list_latent_tiles)(&call);
  call.cache = (NAME(paged_decode_arguments)){.keys = of->latents, .values = of->latents, .num_heads = 1,
                                              .head_dim = of->rank + of->rotated_dim, .page_size = of->page_size,
                                              .window = INT32_MAX, .is_float16 = of->is_float16,
                                              .latent_scales = of->scales, .rotated_dim = of->rotated_dim};
  int64_t num_scores = 0, num_columns = 0;
  for (int64_t i = 0; i < call.num_tiles; i++) {
    const latent_tile *tile = call.tiles + i;
    const int64_t columns = COLUMNS * NAME(latent_columns)(&call, tile);
    num_columns = columns > num_columns ? columns : num_columns;
    num_scores += columns * (tile->position + tile->num_tokens);
  }
  call.part_size = num_columns * (2 + PADDED_DIM(of->rank));
  const int num_threads = sluice_num_threads(), is_short = call.num_tiles >= 2 * num_threads || num_threads == 1;
  if (!is_short && call.num_parts > call.num_tiles && call.num_parts * call.part_size <= MOST_PARTIALS) {
    call.partials = aligned_alloc(LINE_BYTES, ((size_t)(call.num_parts * call.part_size) * sizeof(float) | (LINE_BYTES - 1)) + 1);
    if (!call.partials) {
      free(call.tiles);
      return -1;
    }
  }
  run_ordered_items(BY_TURNS, call.partials ? call.num_parts : call.num_tiles, num_scores * of->rank / 16, NAME(latent_item), &call);
  if (call.partials)
    run_items(call.num_tiles * (MAX_QUERIES / COLUMNS), call.num_parts * call.part_size, NAME(latent_merge_item), &call);
  free(call.partials);
  free(call.tiles);
  return 0;
}

/* Returns 0, or -1 without memory, as the other one. There are at most MAX_QUERIES heads. */
PUBLIC int NAME(latent_decode)(const NAME(latent_decode_arguments) *of) { return NAME(attend_to_latents)(of); }

/* The queries are those of the tokens of all rows, one row after another. */
PUBLIC int NAME(latent_prefill)(const NAME(latent_decode_arguments) *of) { return NAME(attend_to_latents)(of); }

/* Normalizes and stores a token's latent, and splits and rotates its queries. */
static void NAME(store_latents_token)(const void *data, int64_t token) {
  const NAME(store_latents_arguments) *of = data;
  const int64_t plain = of->plain_dim, rotated = of->rotated_dim, half = rotated / 2, rank = of->rank, slot = of->slots[token];
  const float *cosines = of->cosines + of->positions[token] * half, *sines = of->sines + of->positions[token] * half;
  const int64_t to_query = of->query_row * half;
  const float growth = of->growth ? of->growth[of->positions[token]] : 1.0f;
  element *query = of->query + token * of->num_heads * (plain + rotated), *latent = of->latent + token * (rank + rotated);
  for (int64_t head = 0; head < of->num_heads; head++, query += plain + rotated) {
    element *to = of->plain + (head * of->num_tokens + token) * plain;
    if (of->growth) SIMD for (int64_t i = 0; i < plain; i++) to[i] = NARROW(WIDEN(query[i]) * growth);
    else memcpy(to, query, sizeof(element) * (size_t)plain);
    NAME(rotate_heads)
    (query + plain, of->rotated + (head * of->num_tokens + token) * rotated, 0, 1, cosines + to_query, sines + to_query, half, rotated, 0);
  }
  if (slot < 0) return;
  const NAME(layer_norm_arguments) norm = {.x = latent, .weight = of->weight, .out = latent, .size = rank, .stride = rank, .eps = of->eps};
  NAME(rms_norm_token)(&norm, 0);
  NAME(rotate_heads)(latent + rank, latent + rank, 0, 1, cosines, sines, half, rotated, 0);
  if (of->scales) {
    int8_t *codes = (int8_t *)of->latents + slot * (rank + 2 * rotated);
    of->scales[slot] = NAME(quantize_head)(latent, codes, rank);
    for (int64_t i = 0; i < rotated; i++) {
      const uint16_t mine = narrow_bfloat16(WIDEN(latent[rank + i]));
      memcpy(codes + rank + 2 * i, &mine, sizeof mine);
    }
    return;
  }
#if !IS_BFLOAT16
  if (of->is_float16) {
    narrow_float16s(latent, (uint16_t *)of->latents + slot * (rank + rotated), rank + rotated);
    return;
  }
#endif
  memcpy((element *)of->latents + slot * (rank + rotated), latent, sizeof(element) * (size_t)(rank + rotated));
}

PUBLIC int NAME(store_latents)(const NAME(store_latents_arguments) *of) {
  for (int64_t head = 0; head < of->num_heads; head++) of->ends[head] = (int32_t)((head + 1) * of->num_tokens);
  const int64_t size = of->num_heads * (of->plain_dim + of->rotated_dim) + of->rank + of->rotated_dim;
  run_items(of->num_tokens, of->num_tokens * size, NAME(store_latents_token), of);
  return 0;
}

static void NAME(join_heads_token)(const void *data, int64_t token) {
  const NAME(join_heads_arguments) *of = data;
  for (int64_t head = 0; head < of->num_heads; head++)
    memcpy(of->out + (token * of->num_heads + head) * of->size, of->x + (head * of->num_tokens + token) * of->size,
           sizeof(element) * (size_t)of->size);
}

ITEM_OPERATION(join_heads, join_heads_arguments, of->num_tokens, of->num_tokens * of->num_heads * of->size, join_heads_token)

#undef STEP
#undef ON_TILES
#undef packed
#undef packed_step
#undef TILE_ROWS
#undef ENDS_STEP
#undef VALUES_ROW
#undef VALUES_STEP
