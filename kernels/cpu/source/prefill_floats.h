/* The steps of prefill attention between its products, in float32. */

#define ENDS_STEP TILE_ROWS /* keys that are taken together */

/* The strides of `values`, for tile_product. */
#define VALUES_ROW 1
#define VALUES_STEP(padded_dim) (padded_dim)

#ifndef SLUICE_PREFILL_FLOATS
#define SLUICE_PREFILL_FLOATS
enum { TILE_VECTORS = 16 / TILE_LANES };
typedef int32_t tile_numbers __attribute__((vector_size(4 * TILE_LANES), aligned(4), may_alias));
typedef uint32_t tile_counts __attribute__((vector_size(4 * TILE_LANES), aligned(4), may_alias));

INLINE tile_vector tile_greater(tile_vector a, tile_vector b) {
  for (int q = 0; q < TILE_LANES; q++) a[q] = b[q] > a[q] ? b[q] : a[q];
  return a;
}

INLINE tile_vector tile_powers_of_2(tile_vector x) {
  float all[TILE_LANES];
  memcpy(all, &x, sizeof x);
  SIMD for (int q = 0; q < TILE_LANES; q++) all[q] = power_of_2(all[q]);
  memcpy(&x, all, sizeof x);
  return x;
}

INLINE tile_vector tile_select(tile_numbers which, tile_vector a, tile_vector b) {
  return (tile_vector)((which & (tile_numbers)a) | (~which & (tile_numbers)b));
}

/* Whether queries see keys at these distances before their last ones: none with a negative distance is seen. */
INLINE tile_numbers tile_is_seen(tile_numbers distances, tile_counts num_seen) {
  return (tile_numbers)((tile_counts)distances < num_seen);
}

/* Transposes LANES rows. */
INLINE void transpose_lanes(lanes *rows) {
#if defined(__AVX2__)
  __m256 pairs[LANES];
  __m256d fours[LANES];
  for (int i = 0; i < LANES; i += 2) {
    pairs[i] = _mm256_unpacklo_ps((__m256)rows[i], (__m256)rows[i + 1]);
    pairs[i + 1] = _mm256_unpackhi_ps((__m256)rows[i], (__m256)rows[i + 1]);
  }
  for (int i = 0; i < LANES; i += 4)
    for (int half = 0; half < 2; half++) {
      const __m256d first = _mm256_castps_pd(pairs[i + half]), second = _mm256_castps_pd(pairs[i + 2 + half]);
      fours[i + 2 * half] = _mm256_unpacklo_pd(first, second);
      fours[i + 2 * half + 1] = _mm256_unpackhi_pd(first, second);
    }
  for (int i = 0; i < 4; i++) {
    rows[i] = (lanes)_mm256_permute2f128_pd(fours[i], fours[4 + i], 0x20);
    rows[4 + i] = (lanes)_mm256_permute2f128_pd(fours[i], fours[4 + i], 0x31);
  }
#else
  for (int i = 0; i < LANES; i++)
    for (int j = 0; j < i; j++) {
      const float mine = rows[i][j];
      rows[i][j] = rows[j][i];
      rows[j][i] = mine;
    }
#endif
}
#endif

/* Elements beyond the last query of its vector and beyond head_dim are 0. */
static void NAME(pack_queries)(const element *query, int64_t stride, int queries_a_token, int num_queries, int head_dim,
                               NAME(prefill_scratch) *s) {
  const int padded_dim = PADDED_DIM(head_dim);
  for (int q = 0; q < (num_queries + 15) / 16 * 16; q += LANES) {
    const element *from[LANES];
    for (int i = 0; i < LANES; i++) from[i] = query + (q + i) / queries_a_token * stride + (q + i) % queries_a_token * head_dim;
    for (int d = 0; d < padded_dim; d += LANES) {
      lanes rows[LANES] = {{0}};
      if (q + LANES <= num_queries && d + LANES <= head_dim) {
        for (int i = 0; i < LANES; i++) rows[i] = LOAD(from[i] + d);
      } else {
        for (int i = 0; i < LANES && q + i < num_queries; i++)
          for (int k = 0; k < LANES && d + k < head_dim; k++) rows[i][k] = WIDEN(from[i][d + k]);
      }
      transpose_lanes(rows);
      for (int k = 0; k < LANES; k++) *(lanes *)(s->query + column_of(q, padded_dim) + (d + k) * QUERY_STRIDE) = rows[k];
    }
  }
}

/* keys and values: [BLOCK, padded_dim]; 0 beyond `num_keys` and beyond head_dim. */
INLINE void NAME(pack_block)(const NAME(paged_decode_arguments) *cache, int num_keys, int padded_dim, const cached_form form,
                             NAME(prefill_scratch) *s) {
  const int head_dim = (int)cache->head_dim;
  if (num_keys < BLOCK || padded_dim != head_dim) {
    memset(s->keys, 0, sizeof(float) * BLOCK * (size_t)padded_dim);
    memset(s->values, 0, sizeof(float) * BLOCK * (size_t)padded_dim);
  }
  for (int j = 0; j < num_keys; j++) {
    const int64_t at = s->offsets[j];
    float *key = s->keys + j * padded_dim, *value = s->values + j * padded_dim;
    if (form == CODES) {
      const int8_t *key_codes = (const int8_t *)cache->keys + at, *value_codes = (const int8_t *)cache->values + at;
      SIMD for (int d = 0; d < head_dim; d++) key[d] = (float)key_codes[d];
      SIMD for (int d = 0; d < head_dim; d++) value[d] = (float)value_codes[d];
      continue;
    }
    if (form == FLOAT16) {
      widen_float16s((const uint16_t *)cache->keys + at, key, head_dim);
      widen_float16s((const uint16_t *)cache->values + at, value, head_dim);
      continue;
    }
    SIMD for (int d = 0; d < head_dim; d++) key[d] = WIDEN(((const element *)cache->keys)[at + d]);
    SIMD for (int d = 0; d < head_dim; d++) value[d] = WIDEN(((const element *)cache->values)[at + d]);
  }
}

/* Only integers have scales of queries. */
INLINE void NAME(pack_query_codes)(const element *query, int64_t stride, int queries_a_token, int num_queries, int head_dim,
                                   float scale, NAME(prefill_scratch) *s) {
  (void)query, (void)stride, (void)queries_a_token, (void)num_queries, (void)head_dim, (void)scale, (void)s;
}

/* Multiplies the scores of 16 queries by the scales of the keys. */
INLINE void NAME(scale_scores)(int query, int num_keys, NAME(prefill_scratch) *s) {
  for (int j = 0; j < num_keys; j++)
    SIMD for (int q = 0; q < 16; q++) s->scores[j * QUERY_STRIDE + query % QUERY_STRIDE + q] *= s->key_scales[j];
}

/* Turns the scores of 16 queries for the block's first `num_keys` keys into weights, as weigh_floats does, and merges the
   softmax. If `is_masked`, keys that a query does not see have weight 0. */
INLINE void NAME(soften)(float rate, int query, int num_keys, int64_t first, const int is_masked,
                         const int is_codes, NAME(prefill_scratch) *s) {
  const int column = query % QUERY_STRIDE;
  for (int v = 0; v < TILE_VECTORS; v++) {
    tile_vector *scores = (tile_vector *)(s->scores + column) + v, totals[TOTAL_LANES] = {{0}};
    const tile_vector none = {0}, lowest = none - INFINITY;
    const tile_numbers last = ((const tile_numbers *)(s->last_seen + query))[v] - (int32_t)first;
    const tile_counts num_seen = ((const tile_counts *)(s->num_seen + query))[v];
    tile_vector best = lowest;
    for (int j = 0; j < num_keys; j++) {
      const tile_vector mine = scores[j * (QUERY_STRIDE / TILE_LANES)];
      best = tile_greater(best, is_masked ? tile_select(tile_is_seen(last - j, num_seen), mine, lowest) : mine);
    }
    const tile_vector level = best * rate;
    for (int j = 0; j < num_keys; j++) {
      tile_vector *mine = scores + j * (QUERY_STRIDE / TILE_LANES);
      const tile_vector weights = tile_powers_of_2(tile_fused(*mine, none + rate, -level));
      *mine = is_masked ? tile_select(tile_is_seen(last - j, num_seen), weights, none) : weights;
      totals[j % TOTAL_LANES] += *mine;
      if (is_codes) *mine *= s->value_scales[j];
    }
    for (int n = TOTAL_LANES / 2; n; n /= 2)
      for (int l = 0; l < n; l++) totals[l] += totals[l + n];
    tile_vector *levels = (tile_vector *)(s->level + query) + v, *total = (tile_vector *)(s->total + query) + v;
    tile_vector *keep = (tile_vector *)(s->keep + column) + v, *add = (tile_vector *)(s->add + column) + v;
    const tile_vector highest = tile_greater(*levels, level);
    *keep = tile_powers_of_2(*levels - highest);
    *add = tile_powers_of_2(level - highest);
    *total = tile_fused(*total, *keep, totals[0] * *add);
    *levels = highest;
  }
}

/* out: the first query's head of the first token; tokens are `stride` elements apart. */
static void NAME(unpack_sums)(const NAME(prefill_scratch) *s, int num_queries, int queries_a_token, int head_dim,
                              element *out, int64_t stride) {
  const int padded_dim = PADDED_DIM(head_dim);
  for (int q = 0; q < num_queries; q += LANES) {
    const lanes inverse = 1.0f / *(const lanes *)(s->total + q);
    element *to[LANES];
    for (int i = 0; i < LANES; i++) to[i] = out + (q + i) / queries_a_token * stride + (q + i) % queries_a_token * head_dim;
    for (int d = 0; d < head_dim; d += LANES) {
      lanes rows[LANES];
      for (int k = 0; k < LANES; k++)
        rows[k] = *(const lanes *)(s->sums + column_of(q, padded_dim) + (d + k) * QUERY_STRIDE) * inverse;
      transpose_lanes(rows);
      for (int i = 0; i < LANES && q + i < num_queries; i++)
        if (d + LANES <= head_dim) {
          SIMD for (int k = 0; k < LANES; k++) to[i][d + k] = NARROW(rows[i][k]);
        } else {
          for (int k = 0; d + k < head_dim; k++) to[i][d + k] = NARROW(rows[i][k]);
        }
    }
  }
}
