/* Decode attention of a few keys, for processors that multiply pairs of bfloat16. */

INLINE __m512 KV(dot_lanes)(const uint16_t *query, const uint16_t *key, const int head_dim) {
  __m512 sum = _mm512_setzero_ps();
  int i = 0;
  for (; i + 32 <= head_dim; i += 32)
    sum = _mm512_dpbf16_ps(sum, (__m512bh)_mm512_loadu_si512(query + i), (__m512bh)_mm512_loadu_si512(key + i));
  if (i < head_dim) {
    const __mmask32 rest = lanes_from(i, head_dim);
    sum = _mm512_dpbf16_ps(sum, (__m512bh)_mm512_maskz_loadu_epi16(rest, query + i),
                           (__m512bh)_mm512_maskz_loadu_epi16(rest, key + i));
  }
  return sum;
}

/* Scores of some keys with the queries of their head; the queries' scores are BLOCK apart. */
INLINE void KV(score_keys)(const KV(decode_queries) *queries, int64_t first, int64_t num_queries, const uint16_t *keys,
                           const int64_t *offsets, int num_keys, const int head_dim, float *scores) {
  const uint16_t *query = queries->rows + first * head_dim;
  for (int64_t q = 0; q < num_queries; q++, query += head_dim, scores += BLOCK) {
    __m512 lanes[NEAR_KEYS];
    for (int k = 0; k < NEAR_KEYS; k++) lanes[k] = KV(dot_lanes)(query, keys + offsets[k < num_keys ? k : 0], head_dim);
    const __m128 sums = sum_lanes(lanes[0], lanes[1], lanes[2], lanes[3]);
    _mm_storeu_ps(scores, _mm_mul_ps(sums, _mm_set1_ps(queries->scale)));
  }
}

/* Rounds a block's weights as prefill does, in place: each float's place holds those of two keys. */
INLINE float KV(round_weights)(float *weights) {
  for (int j = 0; j < BLOCK; j += 32) {
    const __m512bh both = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(weights + j + 16), _mm512_loadu_ps(weights + j));
    _mm512_storeu_ps(weights + j / 2, _mm512_castsi512_ps((__m512i)both));
  }
  return 1.0f;
}

/* Adds keys [j, j + num_keys) of a block. 32 elements of two consecutive keys become two vectors of sums, of the first and
   the second four of each eight elements; put_in_order restores their order. */
INLINE void KV(add_values)(const float *weights, int j, int64_t num_queries, const uint16_t *values,
                           const int64_t *offsets, int num_keys, const int head_dim, float *sums) {
  for (int first = 0; first < head_dim; first += 32) {
    const __mmask32 lanes = lanes_from(first, head_dim);
    __m512i low[NEAR_KEYS / 2], high[NEAR_KEYS / 2];
    for (int k = 0; k < NEAR_KEYS; k += 2) {
      const __m512i even = k < num_keys ? _mm512_maskz_loadu_epi16(lanes, values + offsets[k] + first) : _mm512_setzero_si512();
      const __m512i odd = k + 1 < num_keys ? _mm512_maskz_loadu_epi16(lanes, values + offsets[k + 1] + first)
                                           : _mm512_setzero_si512();
      low[k / 2] = _mm512_unpacklo_epi16(even, odd);
      high[k / 2] = _mm512_unpackhi_epi16(even, odd);
    }
    for (int64_t q = 0; q < num_queries; q++) {
      float *mine = sums + q * SUMS_SIZE(head_dim) + first;
      __m512 low_sums = _mm512_loadu_ps(mine), high_sums = _mm512_loadu_ps(mine + 16);
      for (int k = 0; k < NEAR_KEYS; k += 2) {
        const __m512bh pair = (__m512bh)_mm512_castps_si512(_mm512_set1_ps(weights[q * BLOCK + (j + k) / 2]));
        low_sums = _mm512_dpbf16_ps(low_sums, pair, (__m512bh)low[k / 2]);
        high_sums = _mm512_dpbf16_ps(high_sums, pair, (__m512bh)high[k / 2]);
      }
      _mm512_storeu_ps(mine, low_sums);
      _mm512_storeu_ps(mine + 16, high_sums);
    }
  }
}

INLINE void KV(put_in_order)(float *sums, const int head_dim, float unit) {
  (void)unit;
  const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
  for (int i = 0; i < head_dim; i += 32) {
    const __m512 low = _mm512_loadu_ps(sums + i), high = _mm512_loadu_ps(sums + i + 16);
    _mm512_storeu_ps(sums + i, _mm512_permutex2var_ps(low, first, high));
    _mm512_storeu_ps(sums + i + 16, _mm512_permutex2var_ps(low, second, high));
  }
}
