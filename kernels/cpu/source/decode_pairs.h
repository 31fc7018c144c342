/* Decode attention of a few keys, for processors that multiply pairs of bfloat16. */

#include "pairs.h"

/* Pairs of the query's elements, spread for score_turned. */
INLINE float KV(prepare_query)(const uint16_t *query, const int head_dim, float scale, void *out) {
  for (int i = 0; i < head_dim; i += 32)
    spread_fours((quads)_mm512_maskz_loadu_epi16(lanes_from(i, head_dim), query + i), (quads *)out + i / 32 * 4);
  return scale;
}

/* K of four keys from element `i` on, as score_queries takes it; keys beyond `num_keys` repeat the first. */
INLINE void KV(turn_keys)(const uint16_t *keys, const int64_t *offsets, int num_keys, int i, const int head_dim, quads *turned) {
  for (int k = 0; k < NEAR_KEYS; k++) {
    const uint16_t *mine = keys + offsets[k < num_keys ? k : 0] + i;
    turned[k] = (quads)(i + 32 <= head_dim ? _mm512_loadu_si512(mine) : _mm512_maskz_loadu_epi16(lanes_from(i, head_dim), mine));
  }
  turn_fours(turned);
}

INLINE quads KV(add_products)(quads sum, quads query, quads near) {
  return (quads)_mm512_dpbf16_ps((__m512)sum, (__m512bh)query, (__m512bh)near);
}

INLINE float KV(rate)(float scale) { return scale; }

INLINE softmax KV(weigh)(float *scores, int begin, int end, float rate) { return weigh_pairs(scores, begin, end, rate); }

/* Rounds a block's weights as prefill does. */
INLINE float KV(round_weights)(float *weights) {
  round_to_pairs(weights);
  return 1.0f;
}

/* Adds keys [j, j + num_keys) of a block. 32 elements of two consecutive keys become two vectors of sums, of the first and
   the second four of each eight elements; put_in_order restores their order. */
INLINE void KV(add_values)(const float *weights, int j, int64_t num_queries, const uint16_t *values,
                           const int64_t *offsets, int num_keys, const int head_dim, KV(cursor) *ahead, float *sums) {
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
    KV(ask_lines)(ahead, NEAR_LINES);
    for (int64_t q = 0; q < num_queries; q++) {
      float *mine = sums + q * PADDED_DIM(head_dim) + first;
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
