/* Decode attention of a few int8 keys, for processors that sum products of int16 pairs. */

/* The query as int16. Returns the factor of its products with codes. */
INLINE float KV(prepare_query)(const uint16_t *query, const int head_dim, float scale, void *out) {
  return scale * query_to_int16(query, head_dim, out);
}

INLINE __m512i KV(dot_lanes)(const int16_t *query, const int8_t *key, const int head_dim) {
  __m512i sum = _mm512_setzero_si512();
  for (int i = 0; i < head_dim; i += 32) {
    const __m256i codes = _mm256_maskz_loadu_epi8(lanes_from(i, head_dim), key + i);
    sum = _mm512_dpwssd_epi32(sum, _mm512_loadu_si512(query + i), _mm512_cvtepi8_epi16(codes));
  }
  return sum;
}

/* Scores of some keys, without their scales, with the queries of their head; the queries' scores are BLOCK apart. */
INLINE void KV(score_keys)(const decode_queries *queries, int64_t first, int64_t num_queries, const int8_t *keys,
                           const int64_t *offsets, int num_keys, const int head_dim, KV(cursor) *ahead, float *scores) {
  KV(ask_lines)(ahead, NEAR_KEYS * head_dim / LINE_BYTES);
  for (int64_t q = first; q < first + num_queries; q++, scores += BLOCK) {
    const int16_t *query = (const int16_t *)queries->rows + q * PADDED_DIM(head_dim);
    __m512i lanes[NEAR_KEYS];
    for (int k = 0; k < NEAR_KEYS; k++) lanes[k] = KV(dot_lanes)(query, keys + offsets[k < num_keys ? k : 0], head_dim);
    const __m128 sums = _mm_cvtepi32_ps(sum_integers(lanes[0], lanes[1], lanes[2], lanes[3]));
    _mm_storeu_ps(scores, _mm_mul_ps(sums, _mm_set1_ps(queries->scales[q])));
  }
}

/* The scores have the scale. */
INLINE float KV(rate)(float scale) {
  (void)scale;
  return 1.0f;
}

INLINE softmax KV(weigh)(float *scores, int begin, int end, float rate) { return weigh_pairs(scores, begin, end, rate); }

/* Turns a block's weights into int16, in place: each float's place holds those of two keys. Returns their unit. */
INLINE float KV(round_weights)(float *weights) {
  __m512i largest = _mm512_setzero_si512();
  for (int j = 0; j < BLOCK; j += 16) largest = _mm512_max_epu32(largest, _mm512_castps_si512(_mm512_loadu_ps(weights + j)));
  const float unit = unit_for(largest);
  const __m512 inverse = inverse_of(_mm512_set1_ps(unit));
  for (int j = 0; j < BLOCK; j += 16) {
    const __m256i pairs = to_int16(_mm512_loadu_ps(weights + j), inverse);
    _mm256_storeu_si256((__m256i *)(weights + j / 2), pairs);
  }
  return unit;
}

/* Adds keys [j, j + num_keys) of a block, in integers. 32 elements of two consecutive keys become two vectors of sums, of the
   first and the second eight of each 16 elements; put_in_order restores their order. */
INLINE void KV(add_values)(const float *weights, int j, int64_t num_queries, const int8_t *values, const int64_t *offsets,
                           int num_keys, const int head_dim, KV(cursor) *ahead, float *sums) {
  KV(ask_lines)(ahead, NEAR_KEYS * head_dim / LINE_BYTES);
  for (int first = 0; first < head_dim; first += 32) {
    const __mmask32 lanes = lanes_from(first, head_dim);
    __m512i low[NEAR_KEYS / 2], high[NEAR_KEYS / 2];
    for (int k = 0; k < NEAR_KEYS; k += 2) {
      const __m256i even = k < num_keys ? _mm256_maskz_loadu_epi8(lanes, values + offsets[k] + first) : _mm256_setzero_si256();
      const __m256i odd = k + 1 < num_keys ? _mm256_maskz_loadu_epi8(lanes, values + offsets[k + 1] + first)
                                           : _mm256_setzero_si256();
      low[k / 2] = _mm512_cvtepi8_epi16(_mm256_unpacklo_epi8(even, odd));
      high[k / 2] = _mm512_cvtepi8_epi16(_mm256_unpackhi_epi8(even, odd));
    }
    for (int64_t q = 0; q < num_queries; q++) {
      float *mine = sums + q * PADDED_DIM(head_dim) + first;
      __m512i low_sums = _mm512_loadu_si512(mine), high_sums = _mm512_loadu_si512(mine + 16);
      for (int k = 0; k < NEAR_KEYS; k += 2) {
        const __m512i pair = _mm512_castps_si512(_mm512_set1_ps(weights[q * BLOCK + (j + k) / 2]));
        low_sums = _mm512_dpwssd_epi32(low_sums, pair, low[k / 2]);
        high_sums = _mm512_dpwssd_epi32(high_sums, pair, high[k / 2]);
      }
      _mm512_storeu_si512(mine, low_sums);
      _mm512_storeu_si512(mine + 16, high_sums);
    }
  }
}

INLINE void KV(put_in_order)(float *sums, const int head_dim, float unit) {
  for (int i = 0; i < head_dim; i += 32) {
    const __m512i low = _mm512_loadu_si512(sums + i), high = _mm512_loadu_si512(sums + i + 16);
    const __m512i first = _mm512_shuffle_i64x2(low, high, 0x44), second = _mm512_shuffle_i64x2(low, high, 0xee);
    _mm512_storeu_ps(sums + i, _mm512_mul_ps(_mm512_cvtepi32_ps(first), _mm512_set1_ps(unit)));
    _mm512_storeu_ps(sums + i + 16, _mm512_mul_ps(_mm512_cvtepi32_ps(second), _mm512_set1_ps(unit)));
  }
}
