/* The steps of prefill attention between its products, for processors that multiply pairs of bfloat16. */

#include "pairs.h"

/* `highest` is in units of scores before they are scaled. */
#define LEVEL_UNIT(scale) (1.0f / (float)(scale))

/* The strides of `values`, for tile_product. */
#if defined(__AMX_BF16__)
#define VALUES_ROW(padded_dim) BLOCK
#define VALUES_STEP(padded_dim) 2
#else
#define VALUES_ROW(padded_dim) 2
#define VALUES_STEP(padded_dim) (2 * (padded_dim))
#endif

/* Loads 32 elements of the cache; missing ones are 0. */
INLINE __m512i NAME(load_cached)(const void *from, int64_t at, __mmask32 lanes, const int is_codes, float scale) {
  const element *elements = (const element *)from + at;
  if (!is_codes) return lanes == 0xffffffffu ? _mm512_loadu_si512(elements) : _mm512_maskz_loadu_epi16(lanes, elements);
  const __m256i bytes = _mm256_maskz_loadu_epi8(lanes, (const int8_t *)from + at);
  const __m512 low = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_castsi256_si128(bytes)));
  const __m512 high = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_extracti128_si256(bytes, 1)));
  const __m512 unit = _mm512_set1_ps(scale);
  return (__m512i)_mm512_cvtne2ps_pbh(_mm512_mul_ps(high, unit), _mm512_mul_ps(low, unit));
}

/* Elements beyond the last query of its vector and beyond head_dim are 0. */
static void NAME(pack_queries)(const element *query, int64_t stride, int queries_a_token, int num_queries, int head_dim,
                               NAME(prefill_scratch) *s) {
  for (int q = 0; q < num_queries; q += 16)
    for (int d = 0; d < head_dim; d += 32) {
      __m512i rows[16];
      for (int i = 0; i < 16; i++) {
        const element *mine = query + (q + i) / queries_a_token * stride + (q + i) % queries_a_token * head_dim + d;
        rows[i] = q + i < num_queries ? _mm512_maskz_loadu_epi16(lanes_from(d, head_dim), mine) : _mm512_setzero_si512();
      }
      transpose_pairs(rows);
      uint32_t *out = s->query + column_of(q, PADDED_DIM(head_dim) / 2) + d / 2 * QUERY_STRIDE;
      for (int i = 0; i < 16; i++) _mm512_store_si512(out + i * QUERY_STRIDE, rows[i]);
    }
}

#if defined(__AMX_BF16__)
/* values: from [BLOCK / 2, padded_dim] to [padded_dim, BLOCK / 2] pairs. */
static void NAME(turn_values)(int padded_dim, NAME(prefill_scratch) *s) {
  uint32_t *pairs = (uint32_t *)s->values, turned[BLOCK / 2 * MAX_HEAD_DIM];
  for (int j = 0; j < BLOCK / 2; j += 16)
    for (int d = 0; d < padded_dim; d += 16) {
      __m512i rows[16];
      for (int i = 0; i < 16; i++) rows[i] = _mm512_load_si512(pairs + (j + i) * padded_dim + d);
      transpose_pairs(rows);
      for (int i = 0; i < 16; i++) _mm512_storeu_si512(turned + (d + i) * (BLOCK / 2) + j, rows[i]);
    }
  memcpy(pairs, turned, sizeof(uint32_t) * BLOCK / 2 * (size_t)padded_dim);
}
#endif

/* keys: [BLOCK, padded_dim]; values: [BLOCK / 2, padded_dim] pairs, or [padded_dim, BLOCK / 2] for tiles; 0 beyond
   `num_keys` and beyond head_dim. */
INLINE void NAME(pack_block)(const NAME(paged_decode_arguments) *cache, int num_keys, int padded_dim, const cached_form form,
                             NAME(prefill_scratch) *s) {
  const int head_dim = (int)cache->head_dim;
  const __m512i neighbours = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6,
                                              37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
  const __m512i further = _mm512_add_epi16(neighbours, _mm512_set1_epi16(16));
  uint32_t *pairs = (uint32_t *)s->values;
  for (int j = 0; j < BLOCK; j += 2) {
    int64_t at[2] = {0};
    float key_scales[2] = {0}, value_scales[2] = {0};
    for (int i = 0; i < 2 && j + i < num_keys; i++) {
      at[i] = s->offsets[j + i];
      if (form != CODES) continue;
      key_scales[i] = NAME(scale_at)(cache->key_scales, at[i], head_dim);
      value_scales[i] = NAME(scale_at)(cache->value_scales, at[i], head_dim);
    }
    for (int d = 0; d < padded_dim; d += 32) {
      const __mmask32 first = j < num_keys ? lanes_from(d, head_dim) : 0;
      const __mmask32 second = j + 1 < num_keys ? lanes_from(d, head_dim) : 0;
      _mm512_store_si512(s->keys + j * padded_dim + d, NAME(load_cached)(cache->keys, at[0] + d, first, form == CODES, key_scales[0]));
      _mm512_store_si512(s->keys + (j + 1) * padded_dim + d,
                         NAME(load_cached)(cache->keys, at[1] + d, second, form == CODES, key_scales[1]));
      const __m512i even = NAME(load_cached)(cache->values, at[0] + d, first, form == CODES, value_scales[0]);
      const __m512i odd = NAME(load_cached)(cache->values, at[1] + d, second, form == CODES, value_scales[1]);
      uint32_t *out = pairs + j / 2 * padded_dim + d;
      _mm512_store_si512(out, _mm512_permutex2var_epi16(even, neighbours, odd));
      _mm512_store_si512(out + 16, _mm512_permutex2var_epi16(even, further, odd));
    }
  }
#if defined(__AMX_BF16__)
  NAME(turn_values)(padded_dim, s);
#endif
}

/* Which queries have key `j` in their window: none with fewer keys before it than `j` has. */
INLINE __mmask16 NAME(lanes_in_window)(__m512i num_before, int j, uint32_t window) {
  return _mm512_cmplt_epu32_mask(_mm512_sub_epi32(num_before, _mm512_set1_epi32(j)), _mm512_set1_epi32((int)window));
}

/* Computes the weights of 16 queries for the block's first `num_keys` keys from their scores, and scales the sums so far to
   the new highest score. If `is_masked`, keys later than a query or before its window have weight 0. */
INLINE void NAME(soften)(float scale, int query, int num_keys, int64_t first, uint32_t window, int padded_dim,
                         const int is_masked, NAME(prefill_scratch) *s) {
  const int column = query % QUERY_STRIDE;
  const float *scores = s->scores + column;
  float *sums = s->sums + column_of(query, padded_dim);
  const __m512 highest = _mm512_load_ps(s->highest + query), rate = _mm512_set1_ps(scale);
  const __m512i num_before = _mm512_sub_epi32(_mm512_load_si512(s->positions + query), _mm512_set1_epi32((int)first));
  __m512 highs[4] = {highest, highest, highest, highest}, total[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
  for (int j = 0; j < num_keys; j += 4)
    for (int i = 0; i < 4; i++) {
      const __m512 score = _mm512_load_ps(scores + (j + i) * QUERY_STRIDE);
      const __mmask16 seen = is_masked ? NAME(lanes_in_window)(num_before, j + i, window) : 0xffff;
      highs[i] = _mm512_mask_max_ps(highs[i], seen, score, highs[i]); /* NaN is never the maximum */
    }
  const __m512 high = _mm512_max_ps(_mm512_max_ps(highs[0], highs[1]), _mm512_max_ps(highs[2], highs[3]));
  const __m512 rise = _mm512_mul_ps(_mm512_sub_ps(high, highest), rate);
  const __m512 most = _mm512_mask_mov_ps(highest, _mm512_cmp_ps_mask(rise, _mm512_set1_ps(8.0f), _CMP_GT_OQ), high);
  const __m512 level = _mm512_mul_ps(most, rate);
  for (int j = 0; j < num_keys; j += 2) {
    __m512 weights[2];
    for (int i = 0; i < 2; i++) {
      const __m512 score = _mm512_load_ps(scores + (j + i) * QUERY_STRIDE);
      weights[i] = rough_powers_of_2(_mm512_fmsub_ps(score, rate, level));
      if (is_masked)
        weights[i] = _mm512_maskz_mov_ps(NAME(lanes_in_window)(num_before, j + i, window), weights[i]);
      total[i] = _mm512_add_ps(total[i], weights[i]);
    }
    _mm512_store_si512(s->weights + j / 2 * QUERY_STRIDE + column, pair_up(weights[0], weights[1]));
  }
  const __m512 factor = powers_of_2(_mm512_mul_ps(_mm512_sub_ps(highest, most), rate));
  const __m512 before = _mm512_mul_ps(_mm512_load_ps(s->total + query), factor);
  _mm512_store_ps(s->highest + query, most);
  _mm512_store_ps(s->total + query, _mm512_add_ps(before, _mm512_add_ps(total[0], total[1])));
  if (!_mm512_cmp_ps_mask(factor, _mm512_set1_ps(1.0f), _CMP_NEQ_UQ)) return;
  for (int d = 0; d < padded_dim; d++, sums += QUERY_STRIDE)
    _mm512_store_ps(sums, _mm512_mul_ps(_mm512_load_ps(sums), factor));
}

/* out: the first query's head of the first token; tokens are `stride` elements apart. */
static void NAME(unpack_sums)(const NAME(prefill_scratch) *s, int num_queries, int queries_a_token, int head_dim,
                              element *out, int64_t stride) {
  for (int q = 0; q < num_queries; q += 16) {
    const __m512 inverse = _mm512_div_ps(_mm512_set1_ps(1.0f), _mm512_load_ps(s->total + q));
    for (int d = 0; d < head_dim; d += 32) {
      __m512i rows[16];
      for (int i = 0; i < 16; i++) {
        const float *sums = s->sums + column_of(q, PADDED_DIM(head_dim)) + (d + 2 * i) * QUERY_STRIDE;
        rows[i] = pair_up(_mm512_mul_ps(_mm512_load_ps(sums), inverse),
                          _mm512_mul_ps(_mm512_load_ps(sums + QUERY_STRIDE), inverse));
      }
      transpose_pairs(rows);
      for (int i = 0; i < 16 && q + i < num_queries; i++) {
        element *mine = out + (q + i) / queries_a_token * stride + (q + i) % queries_a_token * head_dim + d;
        _mm512_mask_storeu_epi16(mine, lanes_from(d, head_dim), rows[i]);
      }
    }
  }
}
