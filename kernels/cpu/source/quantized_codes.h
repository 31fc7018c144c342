/* Codes of activations. Beside weights of 4 bits, 127 stands for the largest magnitude of a group; beside those of 8, a token
   has one scale: QUANT_STEPS stand for the mean of its magnitudes. A code that is too large for the product is an outlier:
   what is left of it is added on its own. */
#ifndef SLUICE_QUANTIZED_CODES
#define SLUICE_QUANTIZED_CODES

#define QUANT_LEAST_MAGNITUDE 1e-30f
#ifndef QUANT_STEPS
#define QUANT_STEPS 24.0f
#endif

/* Of a token's input: what its code in the product lacks. */
typedef struct {
  int32_t input, rest;
} quant_outlier;

/* As many outliers as a row of `inputs` can have, for each takes a pair more than 127 / QUANT_STEPS means; of a part of a
   token, which may be far larger than the others, all can be. */
INLINE int64_t quant_most_outliers(int64_t inputs, int is_part) {
  return is_part ? inputs : (int64_t)((float)inputs * QUANT_STEPS / 127.0f);
}

/* What a group is multiplied by for its codes. `magnitude`: the bits of the largest, which are in the order of numbers. */
INLINE float quant_rate(uint32_t magnitude) {
  const float largest = float_of(magnitude);
  return largest > QUANT_LEAST_MAGNITUDE ? 127.0f / largest : 0.0f;
}

/* A group with what is no finite number has the scale NaN, so that all outputs of its row are NaN. */
INLINE quant_factor quant_factor_of(uint32_t magnitude, int32_t sum) {
  const float largest = float_of(magnitude);
  if (magnitude >= 0x7f800000u) return (quant_factor){0, NAN};
  return (quant_factor){-8 * sum, largest > QUANT_LEAST_MAGNITUDE ? largest / 127.0f : 0.0f};
}

/* Four neighbours lie together, the next four `stride` bytes on. */
INLINE void quant_lay(const int8_t *together, int8_t *codes, int64_t stride, const int size) {
  for (int i = 0; i < size; i += 4) memcpy(codes + i / 4 * stride, together + i, 4);
}

/* Makes the codes of a group of 4-bit weights. */
#if defined(__AVX512VNNI__)
INLINE quant_factor quant_round(const float *values, uint32_t magnitude, int8_t *codes) {
  const __m512 rate = _mm512_set1_ps(quant_rate(magnitude));
  __m512i sums = _mm512_setzero_si512();
  QUANT_UNROLL for (int i = 0; i < quant_group(4); i += 16) {
    const __m512i whole = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(values + i), rate));
    sums = _mm512_add_epi32(sums, whole);
    _mm_storeu_si128((void *)(codes + i), _mm512_cvtepi32_epi8(whole));
  }
  return quant_factor_of(magnitude, _mm512_reduce_add_epi32(sums));
}
#else
INLINE quant_factor quant_round(const float *values, uint32_t magnitude, int8_t *codes) {
  const float to_integer = 12582912.0f, rate = quant_rate(magnitude); /* 1.5 * 2^23: see power_of_2 */
  uint32_t sum = 0;
  SIMD_SUM(sum) for (int i = 0; i < quant_group(4); i++) {
    const uint32_t whole = bits_of(values[i] * rate + to_integer) - bits_of(to_integer);
    codes[i] = (int8_t)(uint8_t)whole;
    sum += whole;
  }
  return quant_factor_of(magnitude, (int32_t)sum);
}
#endif

INLINE int32_t quant_clamped(int32_t code, int32_t most) { return code > most ? most : code < -most ? -most : code; }

/* Makes the codes of 64 inputs of a row from `begin` on and adds their sum; returns how many outliers the row has now. */
INLINE int32_t quant_split(const float *values, float rate, int32_t begin, int8_t *codes, int32_t *sum,
                           quant_outlier *outliers, int32_t num_outliers) {
  int32_t whole[QUANT_MOST_INPUTS], added = 0, num_large = 0;
  _Pragma("omp simd reduction(+ : added)") for (int i = 0; i < QUANT_MOST_INPUTS; i++) {
    whole[i] = (int32_t)rintf(values[i] * rate);
    codes[i] = (int8_t)quant_clamped(whole[i], 127);
    added += whole[i];
  }
  *sum += added;
  _Pragma("omp simd reduction(+ : num_large)") for (int i = 0; i < QUANT_MOST_INPUTS; i += 2) {
    const int32_t first = abs(whole[i]), second = abs(whole[i + 1]);
    num_large += (first > 127) | (second > 127) | (first + second > QUANT_PAIR);
  }
  for (int i = 0; num_large && i < QUANT_MOST_INPUTS; i++) {
    const int32_t other = abs(codes[i ^ 1]), most = QUANT_PAIR - other < 127 ? QUANT_PAIR - other : 127;
    const int32_t code = quant_clamped(whole[i], most);
    if (code == whole[i]) continue;
    codes[i] = (int8_t)code;
    outliers[num_outliers++] = (quant_outlier){begin + i, whole[i] - code};
  }
  return num_outliers;
}
#endif
