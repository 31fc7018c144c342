/* Decode attention of a few keys, in floats. */

/* The elements of a head from the i-th on as floats, 0 beyond `head_dim`. */
INLINE quads KV(load_quads)(const kv_element *x, int i, const int head_dim) {
  quads result = {0};
  if (i + QUAD_LANES > head_dim) {
    for (int k = 0; i + k < head_dim; k++) result[k] = WIDEN_KV(x[i + k]);
    return result;
  }
#if defined(__AVX512F__) && IS_CODES
  return (quads)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(x + i))));
#elif defined(__AVX512F__) && IS_FLOAT16
  return (quads)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(x + i)));
#elif defined(__AVX2__) && IS_CODES
  return (quads)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(x + i))));
#elif defined(__AVX2__) && IS_FLOAT16
  return (quads)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(x + i)));
#elif IS_BFLOAT16 && defined(__AVX2__) && !IS_CODES
  return (quads)load_bfloat16(x + i);
#else
  if (sizeof *x == sizeof(float)) return *(const quads *)(const void *)(x + i);
  for (int k = 0; k < QUAD_LANES; k++) result[k] = WIDEN_KV(x[i + k]);
  return result;
#endif
}

INLINE float KV(prepare_query)(const element *query, const int head_dim, float scale, void *out) {
  for (int i = 0; i < head_dim; i += QUAD_LANES) {
    quads x = {0};
    for (int k = 0; k < QUAD_LANES && i + k < head_dim; k++) x[k] = WIDEN(query[i + k]);
    spread_fours(x, (quads *)out + i / QUAD_LANES * 4);
  }
  return scale;
}

/* K of four keys from element `i` on, as score_queries takes it; keys beyond `num_keys` repeat the first. */
INLINE void KV(turn_keys)(const kv_element *keys, const int64_t *offsets, int num_keys, int i, const int head_dim, quads *turned) {
  for (int k = 0; k < NEAR_KEYS; k++) turned[k] = KV(load_quads)(keys + offsets[k < num_keys ? k : 0], i, head_dim);
  turn_fours(turned);
}

INLINE quads KV(add_products)(quads sum, quads query, quads near) { return sum + query * near; }

INLINE float KV(rate)(float scale) { return scale; }

INLINE softmax KV(weigh)(float *scores, int begin, int end, float rate) { return weigh_floats(scores, begin, end, rate); }

INLINE float KV(round_weights)(float *weights) {
  (void)weights;
  return 1.0f;
}

/* Adds keys [j, j + num_keys) of a block; weights beyond are 0. */
INLINE void KV(add_values)(const float *weights, int j, int64_t num_queries, const kv_element *values,
                           const int64_t *offsets, int num_keys, const int head_dim, KV(cursor) *ahead, float *sums) {
  for (int i = 0; i < head_dim; i += QUAD_LANES) {
    quads near[NEAR_KEYS];
    for (int k = 0; k < NEAR_KEYS; k++) near[k] = KV(load_quads)(values + offsets[k < num_keys ? k : 0], i, head_dim);
    KV(ask_lines)(ahead, NEAR_LINES);
    for (int64_t q = 0; q < num_queries; q++) {
      quads *out = (quads *)(sums + q * PADDED_DIM(head_dim) + i), sum = *out;
      for (int k = 0; k < NEAR_KEYS; k++) sum += weights[q * BLOCK + j + k] * near[k];
      *out = sum;
    }
  }
}

INLINE void KV(put_in_order)(float *sums, const int head_dim, float unit) {
  (void)sums, (void)head_dim, (void)unit;
}
