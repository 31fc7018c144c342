/* Queries and weights of attention to int8 codes as int16: sums of products are exact in any order, since
   127 * 32767 * 512 is less than 2^31. */
#if defined(__AVX512BF16__) && !defined(SLUICE_INT16S)
#define SLUICE_INT16S

/* 16 numbers as int16, in units of 1 / inverse. */
INLINE __m256i to_int16(__m512 x, __m512 inverse) {
  return _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(_mm512_mul_ps(x, inverse)));
}

/* The unit is not finite if a number is not: as bits, NaN is larger than any number. */
INLINE float unit_for(__m512i largest_bits) { return float_of((uint32_t)_mm512_reduce_max_epu32(largest_bits)) / 32767.0f; }

INLINE __m512 inverse_of(__m512 unit) {
  return _mm512_maskz_div_ps(_mm512_cmp_ps_mask(unit, _mm512_set1_ps(1e-37f), _CMP_GT_OQ), _mm512_set1_ps(1.0f), unit);
}

/* Sets `out` to a query, padded with zeros to 32; returns its unit. */
INLINE float query_to_int16(const uint16_t *query, const int head_dim, int16_t *out) {
  __m512i largest = _mm512_setzero_si512();
  for (int i = 0; i < head_dim; i += 16) {
    const __m512 x = _mm512_abs_ps(load_vector(query + i, lanes_of(head_dim - i)));
    largest = _mm512_max_epu32(largest, _mm512_castps_si512(x));
  }
  const float unit = unit_for(largest);
  const __m512 inverse = inverse_of(_mm512_set1_ps(unit));
  for (int i = 0; i < PADDED_DIM(head_dim); i += 16)
    _mm256_storeu_si256((__m256i *)(out + i), to_int16(load_vector(query + i, lanes_of(head_dim - i)), inverse));
  return unit;
}

/* The sums of four vectors of integers. */
INLINE __m128i sum_integers(__m512i a, __m512i b, __m512i c, __m512i d) {
  const __m512i ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
  const __m512i cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
  const __m512i all = _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
  const __m256i half = _mm256_add_epi32(_mm512_castsi512_si256(all), _mm512_extracti64x4_epi64(all, 1));
  return _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
}
#endif
