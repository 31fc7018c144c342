/* float16: K and V of the cache, and scales of weights. */
#ifndef SLUICE_FLOAT16_H
#define SLUICE_FLOAT16_H

#define LARGEST_FLOAT16 65504.0f

INLINE float widen_float16(uint16_t x) {
  const uint32_t sign = (uint32_t)(x & 0x8000u) << 16, rest = (uint32_t)(x & 0x7fffu) << 13;
  if (rest >= 0x7c00u << 13) return float_of(sign | rest | 0x7f800000u);
  return float_of(sign | bits_of(float_of(rest) * 0x1p112f));
}

/* Rounds to the nearest, ties to even. Numbers that are too large become the largest, but infinity and NaN stay so. */
INLINE uint16_t narrow_float16(float x) {
  const uint32_t sign = bits_of(x) >> 16 & 0x8000u, size = bits_of(x) & 0x7fffffffu;
  uint32_t code = ((size + 0xfffu + (size >> 13 & 1u)) >> 13) - (112u << 10);
  if (size < 0x38800000u) code = bits_of(float_of(size) + 0.5f) - 0x3f000000u; /* subnormal: units of 2^-24, as near 0.5 */
  if (size > 0x477fe000u) code = 0x7bffu;
  if (size >= 0x7f800000u) code = size > 0x7f800000u ? 0x7e00u : 0x7c00u;
  return (uint16_t)(sign | code);
}

#if defined(__AVX2__)
INLINE void widen_eight(const uint16_t *x, float *out) {
  _mm256_storeu_ps(out, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)x)));
}

INLINE void narrow_eight(const float *x, uint16_t *out) {
  const __m256 all = _mm256_loadu_ps(x), most = _mm256_set1_ps(LARGEST_FLOAT16);
  const __m256 near = _mm256_max_ps(_mm256_min_ps(all, most), _mm256_sub_ps(_mm256_setzero_ps(), most));
  const __m256 size = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), all);
  const __m256 is_finite = _mm256_cmp_ps(size, _mm256_set1_ps(INFINITY), _CMP_LT_OQ);
  _mm_storeu_si128((__m128i *)out, _mm256_cvtps_ph(_mm256_blendv_ps(all, near, is_finite), _MM_FROUND_TO_NEAREST_INT));
}
#else
INLINE void widen_eight(const uint16_t *x, float *out) {
  for (int i = 0; i < 8; i++) out[i] = widen_float16(x[i]);
}

INLINE void narrow_eight(const float *x, uint16_t *out) {
  for (int i = 0; i < 8; i++) out[i] = narrow_float16(x[i]);
}
#endif

INLINE void widen_float16s(const uint16_t *x, float *out, const int64_t size) {
  int64_t i = 0;
#if defined(__AVX512F__)
  for (; i + 16 <= size; i += 16) _mm512_storeu_ps(out + i, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(x + i))));
#endif
  for (; i + 8 <= size; i += 8) widen_eight(x + i, out + i);
  for (; i < size; i++) out[i] = widen_float16(x[i]);
}

INLINE void narrow_float16s(const float *x, uint16_t *out, const int64_t size) {
  int64_t i = 0;
  for (; i + 8 <= size; i += 8) narrow_eight(x + i, out + i);
  for (; i < size; i++) out[i] = narrow_float16(x[i]);
}

#endif
