/* Pairs of bfloat16, 16 to a register. */
#ifndef SLUICE_PAIRS_H
#define SLUICE_PAIRS_H

/* 16 rows of 16 pairs: rows[i] pair j becomes rows[j] pair i. */
INLINE void transpose_pairs(__m512i *rows) {
  __m512i pairs[16], fours[16];
  for (int i = 0; i < 16; i += 2) {
    pairs[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    pairs[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    fours[i] = _mm512_unpacklo_epi64(pairs[i], pairs[i + 2]);
    fours[i + 1] = _mm512_unpackhi_epi64(pairs[i], pairs[i + 2]);
    fours[i + 2] = _mm512_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
    fours[i + 3] = _mm512_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
  }
  for (int i = 0; i < 4; i++) {
    const __m512i low = _mm512_shuffle_i32x4(fours[i], fours[4 + i], 0x44);
    const __m512i high = _mm512_shuffle_i32x4(fours[i], fours[4 + i], 0xee);
    const __m512i low2 = _mm512_shuffle_i32x4(fours[8 + i], fours[12 + i], 0x44);
    const __m512i high2 = _mm512_shuffle_i32x4(fours[8 + i], fours[12 + i], 0xee);
    rows[i] = _mm512_shuffle_i32x4(low, low2, 0x88);
    rows[4 + i] = _mm512_shuffle_i32x4(low, low2, 0xdd);
    rows[8 + i] = _mm512_shuffle_i32x4(high, high2, 0x88);
    rows[12 + i] = _mm512_shuffle_i32x4(high, high2, 0xdd);
  }
}

/* Pairs of the elements at the same place of both vectors, rounded. */
INLINE __m512i pair_up(__m512 first, __m512 second) {
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5,
                                         20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh(second, first));
}

/* Sets `out` to pairs of the elements at the same place of both vectors. */
INLINE void store_pairs(__m512i even, __m512i odd, uint32_t *out) {
  const __m512i neighbours = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6,
                                              37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
  const __m512i further = _mm512_add_epi16(neighbours, _mm512_set1_epi16(16));
  _mm512_storeu_si512(out, _mm512_permutex2var_epi16(even, neighbours, odd));
  _mm512_storeu_si512(out + 16, _mm512_permutex2var_epi16(even, further, odd));
}

/* Rounds a block's weights, in place: each float's place holds those of two keys. */
INLINE void round_to_pairs(float *weights) {
  for (int j = 0; j < BLOCK; j += 32) {
    const __m512bh both = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(weights + j + 16), _mm512_loadu_ps(weights + j));
    _mm512_storeu_ps(weights + j / 2, _mm512_castsi512_ps((__m512i)both));
  }
}

#endif
