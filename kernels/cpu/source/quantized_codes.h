/* Codes of 8 bits for activations: 127 stands for the largest magnitude of a group. */
#ifndef SLUICE_QUANTIZED_CODES
#define SLUICE_QUANTIZED_CODES

#define QUANT_LEAST_MAGNITUDE 1e-30f

/* What a group is multiplied by for its codes. `magnitude`: the bits of the largest, which are in the order of numbers. */
INLINE float quant_rate(uint32_t magnitude) {
  const float largest = float_of(magnitude);
  return largest > QUANT_LEAST_MAGNITUDE ? 127.0f / largest : 0.0f;
}

/* A group with what is no finite number has the scale NaN, so that all outputs of its row are NaN. */
INLINE quant_factor quant_factor_of(uint32_t magnitude, int32_t sum, const int bits) {
  const float largest = float_of(magnitude);
  if (magnitude >= 0x7f800000u) return (quant_factor){0, NAN};
  return (quant_factor){-quant_zero(bits) * sum, largest > QUANT_LEAST_MAGNITUDE ? largest / 127.0f : 0.0f};
}

/* Makes the codes of a group of `bits`-bit weights. */
#if defined(__AVX512VNNI__)
INLINE quant_factor quant_round(const float *values, uint32_t magnitude, int8_t *codes, const int bits) {
  const __m512 rate = _mm512_set1_ps(quant_rate(magnitude));
  __m512i sums = _mm512_setzero_si512();
  QUANT_UNROLL for (int i = 0; i < quant_group(bits); i += 16) {
    const __m512i whole = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(values + i), rate));
    sums = _mm512_add_epi32(sums, whole);
    _mm_storeu_si128((void *)(codes + i), _mm512_cvtepi32_epi8(whole));
  }
  return quant_factor_of(magnitude, _mm512_reduce_add_epi32(sums), bits);
}
#else
INLINE quant_factor quant_round(const float *values, uint32_t magnitude, int8_t *codes, const int bits) {
  const float to_integer = 12582912.0f, rate = quant_rate(magnitude); /* 1.5 * 2^23: see power_of_2 */
  uint32_t sum = 0;
  SIMD_SUM(sum) for (int i = 0; i < quant_group(bits); i++) {
    const uint32_t whole = bits_of(values[i] * rate + to_integer) - bits_of(to_integer);
    codes[i] = (int8_t)(uint8_t)whole;
    sum += whole;
  }
  return quant_factor_of(magnitude, (int32_t)sum, bits);
}
#endif
#endif
