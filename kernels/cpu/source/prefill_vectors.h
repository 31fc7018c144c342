/* The steps of prefill attention between its products, for processors that multiply pairs of bfloat16. */

#include "pairs.h"

#define ENDS_STEP (TILE_ROWS > TOTAL_LANES ? TILE_ROWS : TOTAL_LANES) /* keys that are taken together */

/* The strides of `values`, for tile_product. */
#if ON_TILES
#define VALUES_ROW BLOCK
#define VALUES_STEP(padded_dim) 2
#else
#define VALUES_ROW 2
#define VALUES_STEP(padded_dim) (2 * (padded_dim))
#endif

/* 32 int16 as they are multiplied: for tiles the high or the low byte of each as bfloat16, which holds them exactly. */
INLINE __m512i int16_to_bfloat16(__m512i x) {
  const __m512i low = _mm512_cvtepi16_epi32(_mm512_castsi512_si256(x));
  const __m512i high = _mm512_cvtepi16_epi32(_mm512_extracti64x4_epi64(x, 1));
  return (__m512i)_mm512_cvtne2ps_pbh(_mm512_cvtepi32_ps(high), _mm512_cvtepi32_ps(low));
}

INLINE __m512i NAME(int16_part)(__m512i x, int is_low) {
  if (!ON_TILES) return x;
  return int16_to_bfloat16(is_low ? _mm512_and_si512(x, _mm512_set1_epi16(255)) : _mm512_srai_epi16(x, 8));
}

/* Loads 32 elements of the cache, codes as int16 or, for tiles, as bfloat16; missing ones are 0. */
INLINE __m512i NAME(load_cached)(const void *from, int64_t at, __mmask32 lanes, const int is_codes) {
  const element *elements = (const element *)from + at;
  if (!is_codes) return lanes == 0xffffffffu ? _mm512_loadu_si512(elements) : _mm512_maskz_loadu_epi16(lanes, elements);
  const __m512i codes = _mm512_cvtepi8_epi16(_mm256_maskz_loadu_epi8(lanes, (const int8_t *)from + at));
  return ON_TILES ? int16_to_bfloat16(codes) : codes;
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

/* The same for queries as int16, with their scales. */
static void NAME(pack_query_codes)(const element *query, int64_t stride, int queries_a_token, int num_queries, int head_dim,
                                   float scale, NAME(prefill_scratch) *s) {
  int16_t rows[16][PADDED_DIM(MAX_HEAD_DIM)];
  for (int q = 0; q < num_queries; q += 16) {
    memset(rows, 0, sizeof rows);
    for (int i = 0; i < 16; i++) {
      const element *mine = query + (q + i) / queries_a_token * stride + (q + i) % queries_a_token * head_dim;
      s->query_scales[q + i] = q + i < num_queries ? scale * query_to_int16(mine, head_dim, rows[i]) : 0.0f;
    }
    for (int d = 0; d < head_dim; d += 32) {
      uint32_t *out = s->query + column_of(q, PADDED_DIM(head_dim) / 2) + d / 2 * QUERY_STRIDE;
      for (int part = 0; part < 1 + ON_TILES; part++, out += LOW_QUERY) {
        __m512i pairs[16];
        for (int i = 0; i < 16; i++) pairs[i] = NAME(int16_part)(_mm512_loadu_si512(rows[i] + d), part);
        transpose_pairs(pairs);
        for (int i = 0; i < 16; i++) _mm512_store_si512(out + i * QUERY_STRIDE, pairs[i]);
      }
    }
  }
}

#if ON_TILES
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

/* keys: [BLOCK, padded_dim]; values: [BLOCK / 2, padded_dim] pairs, or for tiles [padded_dim, BLOCK / 2]; 0 beyond `num_keys` and beyond head_dim. */
INLINE void NAME(pack_block)(const NAME(paged_decode_arguments) *cache, int num_keys, int padded_dim, const cached_form form,
                             NAME(prefill_scratch) *s) {
  const int head_dim = (int)cache->head_dim, is_codes = form == CODES;
  uint32_t *pairs = (uint32_t *)s->values;
  for (int j = 0; j < BLOCK; j += 2) {
    const int64_t at[2] = {j < num_keys ? s->offsets[j] : 0, j + 1 < num_keys ? s->offsets[j + 1] : 0};
    for (int d = 0; d < padded_dim; d += 32) {
      const __mmask32 first = j < num_keys ? lanes_from(d, head_dim) : 0;
      const __mmask32 second = j + 1 < num_keys ? lanes_from(d, head_dim) : 0;
      _mm512_store_si512(s->keys + j * padded_dim + d, NAME(load_cached)(cache->keys, at[0] + d, first, is_codes));
      _mm512_store_si512(s->keys + (j + 1) * padded_dim + d, NAME(load_cached)(cache->keys, at[1] + d, second, is_codes));
      const __m512i even = NAME(load_cached)(cache->values, at[0] + d, first, is_codes);
      const __m512i odd = NAME(load_cached)(cache->values, at[1] + d, second, is_codes);
      store_pairs(even, odd, pairs + j / 2 * padded_dim + d);
    }
  }
#if ON_TILES
  NAME(turn_values)(padded_dim, s);
#endif
}

/* Turns the integers of 16 queries into scores. */
INLINE void NAME(scale_scores)(int query, int num_keys, NAME(prefill_scratch) *s) {
  const __m512 scales = _mm512_load_ps(s->query_scales + query);
  float *scores = s->scores + query % QUERY_STRIDE;
  for (int j = 0; j < num_keys; j++, scores += QUERY_STRIDE) {
    const __m512 mine = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_load_si512(scores)), scales);
    _mm512_store_ps(scores, _mm512_mul_ps(mine, _mm512_set1_ps(s->key_scales[j])));
  }
}

/* Which queries see key `j`: none whose last one, `last`, is before it. */
INLINE __mmask16 NAME(lanes_that_see)(__m512i last, int j, __m512i num_seen) {
  return _mm512_cmplt_epu32_mask(_mm512_sub_epi32(last, _mm512_set1_epi32(j)), num_seen);
}

/* Turns the weights of 16 queries, in the place of their scores, into int16. */
INLINE void NAME(round_to_int16)(int column, int num_keys, __m512i largest, NAME(prefill_scratch) *s) {
  const __m512 unit = _mm512_div_ps(_mm512_castsi512_ps(largest), _mm512_set1_ps(32767.0f)), inverse = inverse_of(unit);
  _mm512_store_ps(s->units + column, unit);
  for (int j = 0; j < num_keys; j += 2) {
    const float *weights = s->scores + j * QUERY_STRIDE + column;
    const __m512i even = _mm512_cvtepu16_epi32(to_int16(_mm512_load_ps(weights), inverse));
    const __m512i odd = _mm512_cvtepu16_epi32(to_int16(_mm512_load_ps(weights + QUERY_STRIDE), inverse));
    const __m512i pairs = _mm512_or_si512(even, _mm512_slli_epi32(odd, 16));
    for (int part = 0; part < 1 + ON_TILES; part++)
      _mm512_store_si512(s->weights + part * LOW_WEIGHTS + j / 2 * QUERY_STRIDE + column, NAME(int16_part)(pairs, part));
  }
}

/* Computes the weights of 16 queries for the block's first `num_keys` keys from their scores, as weigh_pairs does, and merges
   the softmax. If `is_masked`, keys that a query does not see have weight 0. */
INLINE void NAME(soften)(float rate, int query, int num_keys, int64_t first, const int is_masked,
                         const int is_codes, NAME(prefill_scratch) *s) {
  const int column = query % QUERY_STRIDE;
  float *scores = s->scores + column;
  const __m512i last = _mm512_sub_epi32(_mm512_load_si512(s->last_seen + query), _mm512_set1_epi32((int)first));
  const __m512i num_seen = _mm512_load_si512(s->num_seen + query);
  const __m512 rates = _mm512_set1_ps(rate);
  __m512 highs[4], totals[TOTAL_LANES];
  __m512i largest = _mm512_setzero_si512();
  for (int i = 0; i < 4; i++) highs[i] = _mm512_set1_ps(-INFINITY);
  for (int i = 0; i < TOTAL_LANES; i++) totals[i] = _mm512_setzero_ps();
  for (int j = 0; j < num_keys; j += 4)
    for (int i = 0; i < 4; i++) {
      const __m512 score = _mm512_load_ps(scores + (j + i) * QUERY_STRIDE);
      const __mmask16 seen = is_masked ? NAME(lanes_that_see)(last, j + i, num_seen) : 0xffff;
      highs[i] = _mm512_mask_max_ps(highs[i], seen, score, highs[i]); /* NaN is never the maximum */
    }
  const __m512 high = _mm512_max_ps(_mm512_max_ps(highs[0], highs[1]), _mm512_max_ps(highs[2], highs[3]));
  const __m512 level = _mm512_mul_ps(high, rates);
  for (int j = 0; j < num_keys; j += TOTAL_LANES)
    _Pragma("GCC unroll 8") for (int i = 0; i < TOTAL_LANES; i += 2) {
      __m512 weights[2];
      for (int k = i; k < i + 2; k++) {
        float *score = scores + (j + k) * QUERY_STRIDE;
        __m512 mine = rough_powers_of_2(_mm512_fmsub_ps(_mm512_load_ps(score), rates, level));
        if (is_masked) mine = _mm512_maskz_mov_ps(NAME(lanes_that_see)(last, j + k, num_seen), mine);
        totals[k] = _mm512_add_ps(totals[k], mine);
        if (is_codes) {
          mine = _mm512_mul_ps(mine, _mm512_set1_ps(s->value_scales[j + k]));
          largest = _mm512_max_epu32(largest, _mm512_castps_si512(mine));
          _mm512_store_ps(score, mine);
        }
        weights[k - i] = mine;
      }
      if (!is_codes) _mm512_store_si512(s->weights + (j + i) / 2 * QUERY_STRIDE + column, pair_up(weights[0], weights[1]));
    }
  if (is_codes) NAME(round_to_int16)(column, num_keys, largest, s);
  for (int n = TOTAL_LANES / 2; n; n /= 2)
    for (int l = 0; l < n; l++) totals[l] = _mm512_add_ps(totals[l], totals[l + n]);
  const __m512 before = _mm512_load_ps(s->level + query), highest = _mm512_max_ps(level, before);
  const __m512 keep = powers_of_2(_mm512_sub_ps(before, highest)), add = powers_of_2(_mm512_sub_ps(level, highest));
  _mm512_store_ps(s->keep + column, keep);
  _mm512_store_ps(s->add + column, add);
  _mm512_store_ps(s->level + query, highest);
  const __m512 total = _mm512_fmadd_ps(_mm512_load_ps(s->total + query), keep, _mm512_mul_ps(totals[0], add));
  _mm512_store_ps(s->total + query, total);
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
