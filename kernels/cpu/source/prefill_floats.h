/* What prefill attention does between its products in float32. */

/* How `values` lie, for tile_product. */
#define VALUES_ROW(padded_dim) 1
#define VALUES_STEP(padded_dim) (padded_dim)

/* query: [padded_dim, MAX_QUERIES]; 0 beyond the last query of its vector and beyond head_dim. */
static void NAME(pack_queries)(const element *query, int64_t stride, int queries_a_token, int num_queries, int head_dim,
                               NAME(prefill_scratch) *s) {
  memset(s->query, 0, sizeof(float) * (size_t)(PADDED_DIM(head_dim) * QUERY_STRIDE));
  for (int q = 0; q < num_queries; q++) {
    const element *mine = query + q / queries_a_token * stride + q % queries_a_token * head_dim;
    for (int d = 0; d < head_dim; d++) s->query[d * QUERY_STRIDE + q] = WIDEN(mine[d]);
  }
}

INLINE void NAME(widen_codes)(const int8_t *codes, const uint16_t *scales, int64_t at, int head_dim, float *out) {
  const float scale = NAME(scale_at)(scales, at, head_dim);
  SIMD for (int d = 0; d < head_dim; d++) out[d] = (float)codes[at + d] * scale;
}

/* keys and values: [BLOCK, padded_dim]; 0 beyond `num_keys` and beyond head_dim. */
INLINE void NAME(pack_block)(const NAME(paged_kv) *cache, int num_keys, int padded_dim, const int is_codes,
                             NAME(prefill_scratch) *s) {
  const int head_dim = (int)cache->head_dim;
  if (num_keys < BLOCK || padded_dim != head_dim) {
    memset(s->keys, 0, sizeof(float) * BLOCK * (size_t)padded_dim);
    memset(s->values, 0, sizeof(float) * BLOCK * (size_t)padded_dim);
  }
  for (int j = 0; j < num_keys; j++) {
    const int64_t at = s->offsets[j];
    float *key = s->keys + j * padded_dim, *value = s->values + j * padded_dim;
    if (is_codes) {
      NAME(widen_codes)(cache->keys, cache->key_scales, at, head_dim, key);
      NAME(widen_codes)(cache->values, cache->value_scales, at, head_dim, value);
      continue;
    }
    SIMD for (int d = 0; d < head_dim; d++) key[d] = WIDEN(((const element *)cache->keys)[at + d]);
    SIMD for (int d = 0; d < head_dim; d++) value[d] = WIDEN(((const element *)cache->values)[at + d]);
  }
}

/* The weights of 16 queries for the block's first `num_keys` keys, from their scores; what was summed up before is
   scaled to the new highest score. Where `is_masked`, tokens later than a query's weigh nothing for it. */
INLINE void NAME(soften)(float scale, int query, int num_keys, int64_t first, int padded_dim, const int is_masked,
                         NAME(prefill_scratch) *s) {
  float most[16], factor[16], total[16] = {0};
  int32_t num_before[16];
  for (int q = 0; q < 16; q++) {
    most[q] = s->highest[query + q];
    num_before[q] = is_masked ? (int32_t)(s->positions[query + q] - first) : BLOCK;
  }
  for (int j = 0; j < num_keys; j++) {
    float *scores = s->scores + j * QUERY_STRIDE + query;
    SIMD for (int q = 0; q < 16; q++) {
      scores[q] = j <= num_before[q] ? scores[q] * scale : -INFINITY;
      most[q] = scores[q] > most[q] ? scores[q] : most[q];
    }
  }
  for (int j = 0; j < num_keys; j++) {
    const float *scores = s->scores + j * QUERY_STRIDE + query;
    float *weights = s->weights + j * QUERY_STRIDE + query;
    SIMD for (int q = 0; q < 16; q++) {
      weights[q] = power_of_2(scores[q] - most[q]);
      total[q] += weights[q];
    }
  }
  for (int q = 0; q < 16; q++) {
    factor[q] = power_of_2(s->highest[query + q] - most[q]);
    s->highest[query + q] = most[q];
    s->total[query + q] = s->total[query + q] * factor[q] + total[q];
  }
  for (int d = 0; d < padded_dim; d++)
    SIMD for (int q = 0; q < 16; q++) s->sums[d * QUERY_STRIDE + query + q] *= factor[q];
}

/* out: the first query's head of the first token; tokens are `stride` elements apart. */
static void NAME(unpack_sums)(const NAME(prefill_scratch) *s, int num_queries, int queries_a_token, int head_dim,
                              element *out, int64_t stride) {
  for (int q = 0; q < num_queries; q++) {
    element *mine = out + q / queries_a_token * stride + q % queries_a_token * head_dim;
    const float inverse = 1.0f / s->total[q], *sums = s->sums + q;
    for (int d = 0; d < head_dim; d++) mine[d] = NARROW(sums[d * QUERY_STRIDE] * inverse);
  }
}
