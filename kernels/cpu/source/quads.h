/* Fours of floats, or of 32-bit pairs, side by side in a register: the order in which attention's scores are summed.

   A score is the sum of QUAD_LANES / 4 chains: chain c adds the products of the units 4 c to 4 c + 3 of each QUAD_LANES in
   ascending order, and the chains are added in ascending order. */
#ifndef SLUICE_QUADS_H
#define SLUICE_QUADS_H
#if defined(__AVX512F__)
enum { QUAD_LANES = 16 };
#elif defined(__AVX2__)
enum { QUAD_LANES = 8 };
#else
enum { QUAD_LANES = 4 };
#endif
typedef float quads __attribute__((vector_size(4 * QUAD_LANES), aligned(4), may_alias));

#if defined(__AVX512F__)
#define QUAD_OP(op, ...) (quads) _mm512_##op(__VA_ARGS__)
typedef __m512 quad_floats;
typedef __m512d quad_doubles;
#elif defined(__AVX2__)
#define QUAD_OP(op, ...) (quads) _mm256_##op(__VA_ARGS__)
typedef __m256 quad_floats;
typedef __m256d quad_doubles;
#endif

/* Transposes each four of four rows: row t becomes unit t of each four, of all rows. */
INLINE void turn_fours(quads *x) {
#if defined(__AVX2__)
  const quad_doubles low = (quad_doubles)QUAD_OP(unpacklo_ps, (quad_floats)x[0], (quad_floats)x[1]);
  const quad_doubles high = (quad_doubles)QUAD_OP(unpackhi_ps, (quad_floats)x[0], (quad_floats)x[1]);
  const quad_doubles low2 = (quad_doubles)QUAD_OP(unpacklo_ps, (quad_floats)x[2], (quad_floats)x[3]);
  const quad_doubles high2 = (quad_doubles)QUAD_OP(unpackhi_ps, (quad_floats)x[2], (quad_floats)x[3]);
  x[0] = QUAD_OP(unpacklo_pd, low, low2);
  x[1] = QUAD_OP(unpackhi_pd, low, low2);
  x[2] = QUAD_OP(unpacklo_pd, high, high2);
  x[3] = QUAD_OP(unpackhi_pd, high, high2);
#else
  for (int i = 0; i < 4; i++)
    for (int j = 0; j < i; j++) {
      const float mine = x[i][j];
      x[i][j] = x[j][i];
      x[j][i] = mine;
    }
#endif
}

/* Spreads the units of each four: out[t] has unit t of each four in all lanes of the four. */
INLINE void spread_fours(quads x, quads *out) {
#if defined(__AVX2__)
  out[0] = QUAD_OP(permute_ps, (quad_floats)x, 0x00);
  out[1] = QUAD_OP(permute_ps, (quad_floats)x, 0x55);
  out[2] = QUAD_OP(permute_ps, (quad_floats)x, 0xaa);
  out[3] = QUAD_OP(permute_ps, (quad_floats)x, 0xff);
#else
  for (int t = 0; t < 4; t++) out[t] = (quads){0} + x[t];
#endif
}
#undef QUAD_OP

/* Adds the fours of `x` in ascending order. */
INLINE void sum_fours(quads x, float *sums) {
#if defined(__AVX512F__)
  const __m512 all = (__m512)x;
  __m128 sum = _mm_add_ps(_mm512_castps512_ps128(all), _mm512_extractf32x4_ps(all, 1));
  sum = _mm_add_ps(sum, _mm512_extractf32x4_ps(all, 2));
  _mm_storeu_ps(sums, _mm_add_ps(sum, _mm512_extractf32x4_ps(all, 3)));
#elif defined(__AVX2__)
  _mm_storeu_ps(sums, _mm_add_ps(_mm256_castps256_ps128((__m256)x), _mm256_extractf128_ps((__m256)x, 1)));
#else
  memcpy(sums, &x, sizeof x);
#endif
}

/* The same of four vectors. */
INLINE void sum_four_fours(const quads *x, float *sums) {
#if defined(__AVX512F__)
  const __m512 low = _mm512_shuffle_f32x4((__m512)x[0], (__m512)x[1], 0x44), low2 = _mm512_shuffle_f32x4((__m512)x[2], (__m512)x[3], 0x44);
  const __m512 high = _mm512_shuffle_f32x4((__m512)x[0], (__m512)x[1], 0xee), high2 = _mm512_shuffle_f32x4((__m512)x[2], (__m512)x[3], 0xee);
  __m512 sum = _mm512_add_ps(_mm512_shuffle_f32x4(low, low2, 0x88), _mm512_shuffle_f32x4(low, low2, 0xdd));
  sum = _mm512_add_ps(sum, _mm512_shuffle_f32x4(high, high2, 0x88));
  _mm512_storeu_ps(sums, _mm512_add_ps(sum, _mm512_shuffle_f32x4(high, high2, 0xdd)));
#else
  for (int i = 0; i < 4; i++) sum_fours(x[i], sums + 4 * i);
#endif
}
#endif
