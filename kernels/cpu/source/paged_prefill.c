/* Causal attention of rows with many new tokens each: kernels/paged_prefill.py says what it does.

   An item is (row, tile of up to MAX_QUERIES queries that share a key/value head, that head). Keys are taken in blocks
   from the row's first on, so what a token gets hangs on its row alone. FlashAttention: Dao et al., 2022. */

#ifndef SLUICE_PADDED
#define SLUICE_PADDED
#define PADDED_DIM(head_dim) (((head_dim) + 31) / 32 * 32)
#endif

typedef struct {
  NAME(paged_kv) cache;
  const element *query;
  element *out;
  const int32_t *page_tables, *query_lens, *context_lens;
  int64_t query_stride, table_stride, queries_a_head, tokens_a_tile;
  float scale;
  const int64_t *first_tile, *first_token; /* [rows + 1] */
  int64_t num_rows;
} NAME(paged_prefill_call);

typedef struct {
  packed query[MAX_QUERIES * MAX_HEAD_DIM], weights[MAX_QUERIES * BLOCK];
  packed_step keys[MAX_HEAD_DIM / STEP * BLOCK], values[BLOCK / STEP * MAX_HEAD_DIM];
  float scores[MAX_QUERIES * BLOCK], sums[MAX_QUERIES * MAX_HEAD_DIM];
  float highest[MAX_QUERIES], total[MAX_QUERIES];
  int64_t offsets[BLOCK];
} NAME(prefill_scratch);

#if STEP == 2
/* Writes 16 rows of 32 elements as 16 rows of pairs: rows[j] element 2 i, 2 i + 1 become out[i * BLOCK + j]. */
INLINE void NAME(transpose_pairs)(const __m512i *rows, uint32_t *out) {
  __m512i pairs[16], fours[16];
  for (int i = 0; i < 16; i += 2) {
    pairs[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    pairs[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    fours[i] = _mm512_unpacklo_epi64(pairs[i], pairs[i + 2]);
    fours[i + 1] = _mm512_unpackhi_epi64(pairs[i], pairs[i + 2]);
    fours[i + 2] = _mm512_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
    fours[i + 3] = _mm512_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
  }
  for (int i = 0; i < 4; i++) {
    const __m512i low = _mm512_shuffle_i32x4(fours[i], fours[4 + i], 0x44);
    const __m512i high = _mm512_shuffle_i32x4(fours[i], fours[4 + i], 0xee);
    const __m512i low2 = _mm512_shuffle_i32x4(fours[8 + i], fours[12 + i], 0x44);
    const __m512i high2 = _mm512_shuffle_i32x4(fours[8 + i], fours[12 + i], 0xee);
    _mm512_storeu_si512(out + i * BLOCK, _mm512_shuffle_i32x4(low, low2, 0x88));
    _mm512_storeu_si512(out + (4 + i) * BLOCK, _mm512_shuffle_i32x4(low, low2, 0xdd));
    _mm512_storeu_si512(out + (8 + i) * BLOCK, _mm512_shuffle_i32x4(high, high2, 0x88));
    _mm512_storeu_si512(out + (12 + i) * BLOCK, _mm512_shuffle_i32x4(high, high2, 0xdd));
  }
}

/* keys: [padded_dim / 2, BLOCK] pairs; values: [BLOCK / 2, padded_dim] pairs; 0 beyond `num_keys` and head_dim. */
static void NAME(pack_block)(const NAME(paged_kv) *cache, int num_keys, int padded_dim, NAME(prefill_scratch) *s) {
  const int head_dim = (int)cache->head_dim;
  const __m512i neighbours = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6,
                                              37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
  const __m512i further = _mm512_add_epi16(neighbours, _mm512_set1_epi16(16));
  for (int d = 0; d < padded_dim; d += 32) {
    const __mmask32 lanes = head_dim - d >= 32 ? 0xffffffffu : (__mmask32)((1ull << (head_dim - d)) - 1);
    for (int j = 0; j < BLOCK; j += 16) {
      __m512i rows[16];
      for (int i = 0; i < 16; i++)
        rows[i] = j + i < num_keys ? _mm512_maskz_loadu_epi16(lanes, cache->keys + s->offsets[j + i] + d)
                                   : _mm512_setzero_si512();
      NAME(transpose_pairs)(rows, s->keys + d / 2 * BLOCK + j);
    }
    for (int j = 0; j < BLOCK; j += 2) {
      const __m512i even = j < num_keys ? _mm512_maskz_loadu_epi16(lanes, cache->values + s->offsets[j] + d)
                                        : _mm512_setzero_si512();
      const __m512i odd = j + 1 < num_keys ? _mm512_maskz_loadu_epi16(lanes, cache->values + s->offsets[j + 1] + d)
                                           : _mm512_setzero_si512();
      uint32_t *out = s->values + j / 2 * padded_dim + d;
      _mm512_storeu_si512(out, _mm512_permutex2var_epi16(even, neighbours, odd));
      _mm512_storeu_si512(out + 16, _mm512_permutex2var_epi16(even, further, odd));
    }
  }
}
#else
/* keys: [padded_dim, BLOCK]; values: [BLOCK, padded_dim]; 0 beyond `num_keys` and beyond head_dim. */
static void NAME(pack_block)(const NAME(paged_kv) *cache, int num_keys, int padded_dim, NAME(prefill_scratch) *s) {
  const int head_dim = (int)cache->head_dim;
  if (num_keys < BLOCK || padded_dim != head_dim) {
    memset(s->keys, 0, sizeof(float) * BLOCK * (size_t)padded_dim);
    memset(s->values, 0, sizeof(float) * BLOCK * (size_t)padded_dim);
  }
  for (int j = 0; j < num_keys; j++) {
    const element *key = cache->keys + s->offsets[j], *value = cache->values + s->offsets[j];
    for (int d = 0; d < head_dim; d++) s->keys[d * BLOCK + j] = WIDEN(key[d]);
    SIMD for (int d = 0; d < head_dim; d++) s->values[j * padded_dim + d] = WIDEN(value[d]);
  }
}
#endif

#if STEP == 2
/* take_block on whole vectors, from scores as they come from the product to rounded weights; `num_seen` is positive. */
INLINE float NAME(soften_block)(const float *scores, float scale, int64_t num_seen, float *highest, float *total,
                                packed *weights) {
  __m512 values[BLOCK / 16], most = _mm512_set1_ps(*highest), sum = _mm512_setzero_ps();
  __mmask16 seen[BLOCK / 16];
  for (int v = 0; v < BLOCK / 16; v++) {
    const int64_t left = num_seen - 16 * v;
    seen[v] = left >= 16 ? 0xffff : left > 0 ? (__mmask16)((1u << left) - 1) : 0;
    values[v] = _mm512_mul_ps(_mm512_loadu_ps(scores + 16 * v), _mm512_set1_ps(scale));
    most = _mm512_mask_max_ps(most, seen[v], values[v], most); /* what is not a number is not the most */
  }
  const float best = _mm512_reduce_max_ps(most);
  for (int v = 0; v < BLOCK / 16; v++) {
    const __m512 less = _mm512_sub_ps(values[v], _mm512_set1_ps(best));
    const __m512 weight = _mm512_maskz_mov_ps(seen[v], powers_of_2(less));
    sum = _mm512_add_ps(sum, weight);
    _mm256_storeu_si256((__m256i *)(weights + 16 * v), (__m256i)_mm512_cvtneps_pbh(weight));
  }
  const float factor = best == *highest ? 1.0f : power_of_2(*highest - best);
  *highest = best;
  *total = *total * factor + _mm512_reduce_add_ps(sum);
  return factor;
}
#endif

/* Attends to keys [first, first + num_keys) of the row; query i is at position `position` + i / queries_a_head. */
static void NAME(attend_block)(const NAME(paged_prefill_call) *call, int64_t position, int num_queries, int64_t first,
                               int padded_dim, NAME(prefill_scratch) *s) {
  const float scale = call->scale * LOG2_E;
  memset(s->scores, 0, sizeof(float) * BLOCK * (size_t)((num_queries + 15) / 16 * 16));
  NAME(tile_product)
  (s->query, padded_dim, s->keys, BLOCK, s->scores, BLOCK, num_queries, padded_dim / STEP, BLOCK);
  for (int q = 0; q < num_queries; q++) {
    const int64_t num_seen = position + q / call->queries_a_head + 1 - first;
    float *scores = s->scores + q * BLOCK, *sums = s->sums + q * padded_dim;
    packed *weights = s->weights + q * BLOCK;
    if (num_seen <= 0) {
      memset(weights, 0, sizeof(packed) * BLOCK);
      continue;
    }
#if STEP == 2
    const float factor = NAME(soften_block)(scores, scale, num_seen, s->highest + q, s->total + q, weights);
#else
    SIMD for (int j = 0; j < BLOCK; j++) scores[j] *= scale;
    const float factor = take_block(scores, num_seen < BLOCK ? (int)num_seen : BLOCK, s->highest + q, s->total + q);
    SIMD for (int j = 0; j < BLOCK; j++) weights[j] = PACK_WEIGHT(scores[j]);
#endif
    if (factor != 1.0f) SIMD for (int d = 0; d < padded_dim; d++) sums[d] *= factor;
  }
  NAME(tile_product)
  (s->weights, BLOCK, s->values, padded_dim, s->sums, padded_dim, num_queries, BLOCK / STEP, padded_dim);
}

static void NAME(paged_prefill_item)(const void *data, int64_t item) {
  const NAME(paged_prefill_call) *call = data;
  const int64_t num_heads = call->cache.num_heads, head_dim = call->cache.head_dim, queries = call->queries_a_head;
  /* Tiles at a row's end attend to most: they come first. */
  const int64_t tile = call->first_tile[call->num_rows] - 1 - item / num_heads, head = item % num_heads;
  int64_t row = 0, beyond = call->num_rows;
  while (beyond - row > 1) {
    const int64_t middle = (row + beyond) / 2;
    if (call->first_tile[middle] <= tile) row = middle;
    else beyond = middle;
  }
  const int64_t start = (tile - call->first_tile[row]) * call->tokens_a_tile, rest = call->query_lens[row] - start;
  const int num_tokens = (int)(rest < call->tokens_a_tile ? rest : call->tokens_a_tile);
  const int num_queries = num_tokens * (int)queries, padded_dim = PADDED_DIM((int)head_dim);
  const int64_t position = call->context_lens[row] + start, num_keys = position + num_tokens;
  const int64_t token = call->first_token[row] + start;
  NAME(prefill_scratch) scratch, *s = &scratch;
  const int num_rows = (num_queries + 15) / 16 * 16; /* what a product may touch */
  memset(s->query, 0, sizeof(packed) * (size_t)(num_rows * padded_dim));
  memset(s->weights, 0, sizeof(packed) * (size_t)(num_rows * BLOCK));
  memset(s->sums, 0, sizeof(float) * (size_t)(num_rows * padded_dim));
  for (int q = 0; q < num_queries; q++) {
    const element *query = call->query + (token + q / queries) * call->query_stride + (head * queries + q % queries) * head_dim;
    packed *mine = s->query + q * padded_dim;
    for (int d = 0; d < head_dim; d++) mine[d] = PACK(query[d]);
    s->highest[q] = -INFINITY;
    s->total[q] = 0.0f;
  }
#if STEP == 2 && defined(__AMX_BF16__)
  tile_settings before;
  use_tiles(&before);
#endif
  const int32_t *pages = call->page_tables + row * call->table_stride;
  int here = num_keys < BLOCK ? (int)num_keys : BLOCK;
  NAME(find_tokens)(&call->cache, pages, head, 0, here, s->offsets);
  for (int64_t first = 0; first < num_keys; first += BLOCK) {
    const int64_t rest_keys = num_keys - first - BLOCK;
    NAME(pack_block)(&call->cache, here, padded_dim, s);
    here = rest_keys <= 0 ? 0 : rest_keys < BLOCK ? (int)rest_keys : BLOCK;
    NAME(find_tokens)(&call->cache, pages, head, first + BLOCK, here, s->offsets);
    NAME(ask_for)(call->cache.keys, s->offsets, here, (int)head_dim);
    NAME(ask_for)(call->cache.values, s->offsets, here, (int)head_dim);
    NAME(attend_block)(call, position, num_queries, first, padded_dim, s);
  }
#if STEP == 2 && defined(__AMX_BF16__)
  leave_tiles(&before);
#endif
  for (int q = 0; q < num_queries; q++) {
    element *out = call->out + (((token + q / queries) * num_heads + head) * queries + q % queries) * head_dim;
    const float inverse = 1.0f / s->total[q], *sums = s->sums + q * padded_dim;
    SIMD for (int64_t d = 0; d < head_dim; d++) out[d] = NARROW(sums[d] * inverse);
  }
}

/* query: [tokens of all rows, heads, head_dim], tokens `query_stride` elements apart; out: the same, contiguous.
   Returns 0, or -1 without memory. */
PUBLIC int NAME(paged_prefill)(const element *query, int64_t query_stride, const element *keys, const element *values,
                               const int32_t *page_tables, int64_t table_stride, const int32_t *query_lens,
                               const int32_t *context_lens, element *out, int64_t num_rows, int64_t num_heads,
                               int64_t queries_a_head, int64_t head_dim, int64_t page_size, float scale) {
  if (num_rows == 0) return 0;
  int64_t *firsts = malloc((size_t)(2 * (num_rows + 1)) * sizeof *firsts);
  if (!firsts) return -1;
  int64_t *first_tile = firsts, *first_token = firsts + num_rows + 1, num_scores = 0;
  const int64_t tokens_a_tile = MAX_QUERIES / queries_a_head;
  first_tile[0] = first_token[0] = 0;
  for (int64_t row = 0; row < num_rows; row++) {
    first_tile[row + 1] = first_tile[row] + (query_lens[row] + tokens_a_tile - 1) / tokens_a_tile;
    first_token[row + 1] = first_token[row] + query_lens[row];
    num_scores += (int64_t)query_lens[row] * (context_lens[row] + query_lens[row]);
  }
  NAME(paged_prefill_call)
  call = {{keys, values, num_heads, head_dim, page_size}, query, out, page_tables, query_lens, context_lens,
          query_stride, table_stride, queries_a_head, tokens_a_tile, scale, first_tile, first_token, num_rows};
  run_items(first_tile[num_rows] * num_heads, num_scores * num_heads * head_dim / 16, NAME(paged_prefill_item), &call);
  free(firsts);
  return 0;
}

#undef STEP
#undef packed
#undef packed_step
#undef PACK
#undef PACK_WEIGHT
#undef TILE_VECTORS
