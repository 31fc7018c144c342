/* Codes of activations. A token has one scale: the code QUANT_STEPS is the mean of its magnitudes. A code that is too large for
   the product is an outlier, whose excess is added separately. */
#ifndef SLUICE_QUANTIZED_CODES
#define SLUICE_QUANTIZED_CODES

#define QUANT_LEAST_MAGNITUDE 1e-30f
#ifndef QUANT_STEPS
#define QUANT_STEPS 24.0f
#endif

/* An outlier of a token: the excess of its code, and the place of the input's weights in a block. Near ones have the place and
   the codes of four neighbours, three of which are 0. */
typedef struct {
  uint32_t place;
  int32_t rest;
} quant_outlier;

/* The corrections of a row's codes: near outliers, whose excess is itself a code; far ones, from `most` downwards; and `shift`,
   which was subtracted from all codes. */
typedef struct {
  int32_t num_near, num_far, shift;
} quant_rests;

/* The smallest and the largest number of a row, or 0 if all are above or below it. */
typedef struct {
  float least, largest;
} quant_range;

/* With AVX2 two of the codes 43, 43, 43 and 43 are outliers. */
#define QUANT_LEAST_OUTLIER (QUANT_LANES == 8 ? 85.0f : 127.0f)

/* The most outliers that a row of `inputs` can have, and one more. An outlier and its neighbours are more than
   QUANT_LEAST_OUTLIER / QUANT_STEPS means together. If x is a part of a token, all of its inputs can be outliers, since the
   part may be far larger than the rest. */
INLINE int64_t quant_most_outliers(int64_t inputs, int is_part) {
  return 1 + (is_part ? inputs : (int64_t)((float)inputs * QUANT_STEPS / QUANT_LEAST_OUTLIER));
}

INLINE void quant_note(quant_outlier *outliers, int64_t most, quant_rests *rests, int32_t input, int32_t rest) {
  const uint32_t four = (uint32_t)input / 4 * (4 * QUANT_BLOCK), byte = (uint32_t)input % 4;
  if (abs(rest) <= 127)
    outliers[rests->num_near++] = (quant_outlier){four, (int32_t)((uint32_t)(uint8_t)rest << 8 * byte)};
  else
    outliers[most - ++rests->num_far] = (quant_outlier){four + byte, rest};
}

/* Four neighbours are stored together, the next four `stride` bytes later. */
INLINE void quant_lay(const int8_t *together, int8_t *codes, int64_t stride, const int size) {
  for (int i = 0; i < size; i += 4) memcpy(codes + i / 4 * stride, together + i, 4);
}

#if QUANT_LANES == 8
/* Returns the magnitudes of 32 inputs' codes of one sign, 0 for the others. Four codes that are added in 16 bits (inputs 0,
   1, 4 and 5 of eight, and 2, 3, 6 and 7) sum to QUANT_ROOM at most: the largest of them is reduced, the first of equals. */
INLINE __m256i quant_limited(__m256i sizes) {
  for (;;) {
    const __m256i pairs = _mm256_maddubs_epi16(sizes, _mm256_set1_epi8(1));
    const __m256i fours = _mm256_add_epi16(pairs, _mm256_shuffle_epi32(pairs, 0xb1));
    __m256i excess = _mm256_subs_epu16(fours, _mm256_set1_epi16(QUANT_ROOM));
    if (_mm256_testz_si256(excess, excess)) return sizes;
    __m256i largest = _mm256_max_epu8(sizes, _mm256_or_si256(_mm256_slli_epi16(sizes, 8), _mm256_srli_epi16(sizes, 8)));
    largest = _mm256_max_epu8(largest, _mm256_shuffle_epi32(largest, 0xb1));
    __m256i chosen = _mm256_cmpeq_epi8(sizes, largest);
    chosen = _mm256_andnot_si256(_mm256_slli_epi16(chosen, 8), chosen);
    chosen = _mm256_and_si256(chosen, _mm256_cmpeq_epi16(_mm256_slli_epi64(chosen, 32), _mm256_setzero_si256()));
    excess = _mm256_min_epu16(excess, _mm256_srli_epi16(largest, 8));
    excess = _mm256_or_si256(excess, _mm256_slli_epi16(excess, 8));
    sizes = _mm256_sub_epi8(sizes, _mm256_and_si256(excess, chosen));
  }
}

/* Returns four vectors of integers as bytes in order, with saturation. */
INLINE __m256i quant_narrowed(const __m256i *whole) {
  const __m256i low = _mm256_packs_epi32(whole[0], whole[1]), high = _mm256_packs_epi32(whole[2], whole[3]);
  return _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

/* Makes the codes of 64 inputs of a row from `begin` on; adds their sum and their outliers. */
INLINE void quant_split(const float *values, float rate, int32_t begin, int8_t *codes, int32_t *sum, quant_outlier *outliers,
                        int64_t most, quant_rests *rests) {
  int32_t exact[QUANT_GROUP] __attribute__((aligned(32)));
  __m256i sums = _mm256_setzero_si256();
  uint64_t left = 0;
  for (int i = 0; i < QUANT_GROUP; i += 32) {
    __m256i whole[4], differs[4];
    for (int v = 0; v < 4; v++) {
      whole[v] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(values + i + 8 * v), _mm256_set1_ps(rate)));
      _mm256_store_si256((__m256i *)(exact + i + 8 * v), whole[v]);
      sums = _mm256_add_epi32(sums, whole[v]);
    }
    __m256i code = _mm256_max_epi8(quant_narrowed(whole), _mm256_set1_epi8(-127));
    const __m256i above = _mm256_max_epi8(code, _mm256_setzero_si256()), below = _mm256_sub_epi8(above, code);
    code = _mm256_sub_epi8(quant_limited(above), quant_limited(below));
    _mm256_storeu_si256((__m256i *)(codes + i), code);
    for (int v = 0; v < 4; v++)
      differs[v] = _mm256_cmpeq_epi32(whole[v], _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(codes + i + 8 * v))));
    left |= (uint64_t)~(uint32_t)_mm256_movemask_epi8(quant_narrowed(differs)) << i;
  }
  for (; left; left &= left - 1) {
    const int i = __builtin_ctzll(left);
    quant_note(outliers, most, rests, begin + i, exact[i] - codes[i]);
  }
  __m128i half = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
  half = _mm_hadd_epi32(half, half);
  *sum += _mm_extract_epi32(half, 0) + _mm_extract_epi32(half, 1);
}
#elif defined(__AVX512VNNI__)
/* Returns the shift to subtract from all codes of a row. If the negative ones are small, as after a GELU, it makes room for
   positive ones that would be outliers. No code falls below -127. */
INLINE int32_t quant_shift(quant_range range, float rate) {
  const float least = range.least * rate, largest = range.largest * rate;
  if (!(least >= -64.0f && largest > 127.0f)) return 0; /* NaN if a number is not finite */
  const float room = 126.0f + least, wanted = largest - 126.0f;
  return (int32_t)(wanted < room ? wanted : room);
}

/* Subtracts `rests->shift` from the codes, but not from their sum. */
INLINE void quant_split(const __m512 *values, float rate, int32_t begin, int8_t *codes, __m512i *sums, quant_outlier *outliers,
                        int64_t most, quant_rests *rests) {
  int32_t exact[QUANT_GROUP] __attribute__((aligned(64)));
  uint64_t left = 0;
  for (int i = 0; i < QUANT_GROUP; i += 16) {
    const __m512i whole = _mm512_cvtps_epi32(_mm512_mul_ps(values[i / 16], _mm512_set1_ps(rate)));
    const __m512i shifted = _mm512_sub_epi32(whole, _mm512_set1_epi32(rests->shift));
    *sums = _mm512_add_epi32(*sums, whole);
    _mm512_store_si512(exact + i, shifted);
    left |= (uint64_t)_mm512_cmpgt_epi32_mask(_mm512_abs_epi32(shifted), _mm512_set1_epi32(127)) << i;
    _mm_storeu_si128((void *)(codes + i), _mm_max_epi8(_mm512_cvtsepi32_epi8(shifted), _mm_set1_epi8(-127)));
  }
  for (; left; left &= left - 1) {
    const int i = __builtin_ctzll(left);
    quant_note(outliers, most, rests, begin + i, exact[i] - codes[i]);
  }
}
#else
INLINE void quant_split(const float *values, float rate, int32_t begin, int8_t *codes, int32_t *sum, quant_outlier *outliers,
                        int64_t most, quant_rests *rests) {
  int32_t whole[QUANT_GROUP], added = 0, num_large = 0;
  _Pragma("omp simd reduction(+ : added, num_large)") for (int i = 0; i < QUANT_GROUP; i++) {
    whole[i] = (int32_t)rintf(values[i] * rate);
    codes[i] = (int8_t)(whole[i] > 127 ? 127 : whole[i] < -127 ? -127 : whole[i]);
    added += whole[i];
    num_large += abs(whole[i]) > 127;
  }
  *sum += added;
  for (int i = 0; num_large && i < QUANT_GROUP; i++)
    if (codes[i] != whole[i]) quant_note(outliers, most, rests, begin + i, whole[i] - codes[i]);
}
#endif
#endif
