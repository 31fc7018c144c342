/* The steps of prefill attention between its products, in float32. */

/* `highest` is in units of exponents of 2. */
#define LEVEL_UNIT(scale) LOG2_E

/* The strides of `values`, for tile_product. */
#define VALUES_ROW(padded_dim) 1
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

/* Whether keys at these distances before the queries are in their windows: none with a negative distance is. */
INLINE tile_numbers tile_is_seen(tile_numbers distances, uint32_t window) {
  return (tile_numbers)((tile_counts)distances < window);
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

INLINE void NAME(widen_codes)(const int8_t *codes, const uint16_t *scales, int64_t at, int head_dim, float *out) {
  const float scale = NAME(scale_at)(scales, at, head_dim);
  SIMD for (int d = 0; d < head_dim; d++) out[d] = (float)codes[at + d] * scale;
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
      NAME(widen_codes)(cache->keys, cache->key_scales, at, head_dim, key);
      NAME(widen_codes)(cache->values, cache->value_scales, at, head_dim, value);
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

/* Turns the scores of 16 queries for the block's first `num_keys` keys into weights relative to a level. The level rises to
   the highest score once that is more than 8 above it; the sums so far are then scaled. If `is_masked`, keys later than a
   query or before its window have weight 0. */
INLINE void NAME(soften)(float scale, int query, int num_keys, int64_t first, uint32_t window, int padded_dim,
                         const int is_masked, NAME(prefill_scratch) *s) {
  float *scores = s->scores + query % QUERY_STRIDE, *sums = s->sums + column_of(query, padded_dim);
  tile_vector *levels = (tile_vector *)(s->highest + query), *totals = (tile_vector *)(s->total + query);
  tile_vector highest[TILE_VECTORS], level[TILE_VECTORS], total[TILE_VECTORS];
  tile_numbers num_before[TILE_VECTORS];
  const tile_vector none = {0}, lowest = none - INFINITY;
  for (int v = 0; v < TILE_VECTORS; v++) {
    highest[v] = lowest;
    total[v] = none;
    num_before[v] = ((const tile_numbers *)(s->positions + query))[v] - (int32_t)first;
  }
  for (int j = 0; j < num_keys; j++)
    for (int v = 0; v < TILE_VECTORS; v++) {
      const tile_vector mine = ((const tile_vector *)(scores + j * QUERY_STRIDE))[v];
      highest[v] = tile_greater(highest[v], is_masked ? tile_select(tile_is_seen(num_before[v] - j, window), mine, lowest) : mine);
    }
  for (int v = 0; v < TILE_VECTORS; v++)
    level[v] = tile_select(highest[v] * scale > levels[v] + 8.0f, highest[v] * scale, levels[v]);
  for (int v = 0; v < TILE_VECTORS; v++)
    for (int j = 0; j < num_keys; j++) {
      tile_vector *mine = (tile_vector *)(scores + j * QUERY_STRIDE) + v;
      const tile_vector weights = tile_powers_of_2(*mine * scale - level[v]);
      *mine = is_masked ? tile_select(tile_is_seen(num_before[v] - j, window), weights, none) : weights;
      total[v] += *mine;
    }
  for (int v = 0; v < TILE_VECTORS; v++) {
    const tile_vector before = levels[v], factor = tile_powers_of_2(before - level[v]);
    levels[v] = level[v];
    totals[v] = totals[v] * factor + total[v];
    if (memcmp(&before, &level[v], sizeof before) == 0) continue;
    for (int d = 0; d < padded_dim; d++) ((tile_vector *)(sums + d * QUERY_STRIDE))[v] *= factor;
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
