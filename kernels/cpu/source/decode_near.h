/* Decode attention of rows whose K and V another row has just read, for processors that multiply pairs of bfloat16.

   Nothing is prefetched, so one head is done at a time: V is paired once for all rows, and a query's sums stay in the
   registers. Each number is computed as attend_split computes it. */

enum { NEAR_QUERIES = 4 /* at a time */ };

/* V of a head as pairs of two keys' elements, in the order of add_values' sums. */
INLINE void KV(pair_values)(const uint16_t *values, const int64_t *offsets, int num_keys, const int head_dim, __m512i *pairs) {
  for (int k = 0; k < num_keys; k += 2)
    for (int first = 0; first < head_dim; first += 32) {
      const __mmask32 lanes = lanes_from(first, head_dim);
      const __m512i even = _mm512_maskz_loadu_epi16(lanes, values + offsets[k] + first);
      const __m512i odd = k + 1 < num_keys ? _mm512_maskz_loadu_epi16(lanes, values + offsets[k + 1] + first)
                                           : _mm512_setzero_si512();
      *pairs++ = _mm512_unpacklo_epi16(even, odd);
      *pairs++ = _mm512_unpackhi_epi16(even, odd);
    }
}

/* A query of a row, the number of its keys, and the places of its softmax and sums. */
typedef struct {
  const quads *query;
  int num_keys;
  softmax *state;
  float *sums;
} KV(near_query);

INLINE void KV(add_pair)(const float *weights, int pair, const __m512i *pairs, const int num_sums, __mmask32 lanes, __m512 *sum) {
  const __m512bh both = (__m512bh)_mm512_castps_si512(_mm512_set1_ps(weights[pair]));
  for (int i = 0; i < num_sums; i++)
    sum[i] = _mm512_dpbf16_ps(sum[i], both, (__m512bh)_mm512_maskz_mov_epi16(lanes, pairs[pair * num_sums + i]));
}

/* Adds the pairs from `pair` on. If the row has only the first key of the last pair, V of the other may be anything. */
INLINE void KV(finish_sums)(const KV(near_query) *mine, const float *weights, int pair, const __m512i *pairs,
                            const int head_dim, __m512 *sum) {
  const int num_sums = PADDED_DIM(head_dim) / 16;
  for (; pair < mine->num_keys / 2; pair++) KV(add_pair)(weights, pair, pairs, num_sums, 0xffffffffu, sum);
  if (mine->num_keys % 2) KV(add_pair)(weights, pair, pairs, num_sums, 0x55555555u, sum);
  for (int i = 0; i < num_sums; i++) _mm512_storeu_ps(mine->sums + 16 * i, sum[i]);
  KV(put_in_order)(mine->sums, head_dim, 1.0f);
}

/* Two queries at a time: the additions of one would wait for each other. */
INLINE void KV(add_near)(const KV(near_query) *mine, int num_queries, float scores[][2 * BLOCK], int first,
                         const __m512i *pairs, const int head_dim) {
  const int num_sums = PADDED_DIM(head_dim) / 16;
  for (int q = 0; q < num_queries; q += 2) {
    __m512 sum[2][PADDED_DIM(MAX_HEAD_DIM) / 16];
    for (int i = 0; i < num_sums; i++) sum[0][i] = sum[1][i] = _mm512_setzero_ps();
    int pair = 0;
    if (q + 1 < num_queries) {
      const int num_keys = mine[q].num_keys < mine[q + 1].num_keys ? mine[q].num_keys : mine[q + 1].num_keys;
      for (; pair < num_keys / 2; pair++) {
        KV(add_pair)(scores[q] + first, pair, pairs, num_sums, 0xffffffffu, sum[0]);
        KV(add_pair)(scores[q + 1] + first, pair, pairs, num_sums, 0xffffffffu, sum[1]);
      }
      KV(finish_sums)(mine + q + 1, scores[q + 1] + first, pair, pairs, head_dim, sum[1]);
    }
    KV(finish_sums)(mine + q, scores[q] + first, pair, pairs, head_dim, sum[0]);
  }
}

/* `scores` are those of a whole block; `pairs` and `turned` begin with the first of `keys`. */
INLINE void KV(attend_near)(const NAME(paged_decode_call) *call, const KV(near_query) *mine, int num_queries,
                            KV(stretch) keys, const quads *turned, const __m512i *pairs, const int head_dim) {
  const float rate = (float)call->of.scale * LOG2_E, cap = (float)call->of.softcap * LOG2_E / rate;
  float scores[NEAR_QUERIES][2 * BLOCK] __attribute__((aligned(LINE_BYTES)));
  for (int q = 0; q < num_queries; q++) {
    const int end = keys.first + mine[q].num_keys;
    KV(score_near)(mine[q].query, turned, mine[q].num_keys, head_dim, scores[q] + keys.first);
    if (cap != 0.0f) cap_scores(scores[q] + keys.begin, end - keys.begin, cap);
    *mine[q].state = KV(weigh)(scores[q], keys.begin, end, rate);
    KV(round_weights)(scores[q]);
  }
  KV(add_near)(mine, num_queries, scores, keys.first / 2, pairs, head_dim);
}

INLINE void KV(attend_heads)(const NAME(paged_decode_call) *call, int64_t first_split, KV(stretch) keys, int64_t head,
                             int64_t num_heads, const int head_dim) {
  const decode_split *splits = call->plan->splits;
  quads turned[BLOCK / NEAR_KEYS * TURNED_QUADS(MAX_HEAD_DIM)];
  __m512i pairs[BLOCK / 2 * (PADDED_DIM(MAX_HEAD_DIM) / 16)];
  for (int64_t h = 0; h < num_heads; h++) {
    KV(near_query) batch[NEAR_QUERIES];
    int count = 0;
    for (int j = 0; j < keys.num_tokens; j += NEAR_KEYS)
      KV(turn_all)(keys.from + h * head_dim, keys.offsets + j, keys.num_tokens - j, head_dim, turned + j / NEAR_KEYS * TURNED_QUADS(head_dim));
    KV(pair_values)((const uint16_t *)call->of.values + h * head_dim, keys.offsets, keys.num_tokens, head_dim, pairs);
    for (int64_t split = first_split; split != NO_SPLIT; split = splits[split].next) {
      const int64_t query = KV(place_of)(call, splits[split].row, head + h), place = KV(place_of)(call, split, head + h);
      for (int64_t q = 0; q < call->of.queries_a_head; q++) {
        const quads *prepared = (const quads *)(call->queries + (query + q) * QUERY_BYTES(head_dim));
        float *sums = call->sums + (place + q) * PADDED_DIM(head_dim);
        batch[count++] = (KV(near_query)){prepared, KV(keys_of)(call, split, keys).num_tokens, call->softmaxes + place + q, sums};
        if (count == NEAR_QUERIES) {
          KV(attend_near)(call, batch, count, keys, turned, pairs, head_dim);
          count = 0;
        }
      }
    }
    KV(attend_near)(call, batch, count, keys, turned, pairs, head_dim);
  }
}
