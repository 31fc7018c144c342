/* Decode attention of rows whose K and V another row has just read, for processors that multiply pairs of bfloat16.

   Nothing is prefetched, so one head is done at a time: V is paired once for all rows, and a query's sums stay in the
   registers. Each number is computed as attend_split computes it. */

/* Copies K of a head, key after key: in the cache of pages they may map to few sets of the L1 cache. */
INLINE void KV(copy_keys)(const uint16_t *keys, const int64_t *offsets, int num_keys, const int head_dim, uint16_t *near) {
  for (int k = 0; k < num_keys; k++, near += SUMS_SIZE(head_dim))
    for (int first = 0; first < head_dim; first += 32) {
      const __mmask32 lanes = lanes_from(first, head_dim);
      _mm512_storeu_si512(near + first, _mm512_maskz_loadu_epi16(lanes, keys + offsets[k] + first));
    }
}

/* Queries at a time, and the number of rows of a group up to which copying K and V does not pay. */
enum { NEAR_QUERIES = 4, FEW_SHARING = 2 };

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

/* Scores of a query with the first `num_keys` of these keys, padded to a multiple of 16; it adds in the order of
   score_keys. */
INLINE void KV(score_near)(const uint16_t *query, float scale, const uint16_t *near, int num_keys, const int head_dim,
                           float *scores) {
  for (int j = 0; j < num_keys; j += 16) {
    __m512 fours[4];
    for (int f = 0; f < 4; f++, near += 4 * SUMS_SIZE(head_dim)) {
      __m512 lanes[4];
      for (int k = 0; k < 4; k++) lanes[k] = KV(dot_lanes)(query, near + k * SUMS_SIZE(head_dim), head_dim);
      fours[f] = sum_parts(lanes[0], lanes[1], lanes[2], lanes[3]);
    }
    const __m512 first = add_halves(fours[0], fours[1]), second = add_halves(fours[2], fours[3]);
    const __m512 sums = _mm512_add_ps(_mm512_shuffle_f32x4(first, second, 0x88), _mm512_shuffle_f32x4(first, second, 0xdd));
    _mm512_store_ps(scores + j, _mm512_mul_ps(sums, _mm512_set1_ps(scale)));
  }
}

/* A query of a row, the number of its keys, and the places of its softmax and sums. */
typedef struct {
  const uint16_t *query;
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
  const int num_sums = SUMS_SIZE(head_dim) / 16;
  for (; pair < mine->num_keys / 2; pair++) KV(add_pair)(weights, pair, pairs, num_sums, 0xffffffffu, sum);
  if (mine->num_keys % 2) KV(add_pair)(weights, pair, pairs, num_sums, 0x55555555u, sum);
  for (int i = 0; i < num_sums; i++) _mm512_storeu_ps(mine->sums + 16 * i, sum[i]);
  KV(put_in_order)(mine->sums, head_dim, 1.0f);
}

/* Two queries at a time: the additions of one would wait for each other. */
INLINE void KV(add_near)(const KV(near_query) *mine, int num_queries, float scores[][BLOCK], const __m512i *pairs,
                         const int head_dim) {
  const int num_sums = SUMS_SIZE(head_dim) / 16;
  for (int q = 0; q < num_queries; q += 2) {
    __m512 sum[2][SUMS_SIZE(MAX_HEAD_DIM) / 16];
    for (int i = 0; i < num_sums; i++) sum[0][i] = sum[1][i] = _mm512_setzero_ps();
    int pair = 0;
    if (q + 1 < num_queries) {
      const int num_keys = mine[q].num_keys < mine[q + 1].num_keys ? mine[q].num_keys : mine[q + 1].num_keys;
      for (; pair < num_keys / 2; pair++) {
        KV(add_pair)(scores[q], pair, pairs, num_sums, 0xffffffffu, sum[0]);
        KV(add_pair)(scores[q + 1], pair, pairs, num_sums, 0xffffffffu, sum[1]);
      }
      KV(finish_sums)(mine + q + 1, scores[q + 1], pair, pairs, head_dim, sum[1]);
    }
    KV(finish_sums)(mine + q, scores[q], pair, pairs, head_dim, sum[0]);
  }
}

INLINE void KV(attend_near)(const KV(near_query) *mine, int num_queries, float scale, float cap, const uint16_t *near,
                            const __m512i *pairs, const int head_dim) {
  float scores[NEAR_QUERIES][BLOCK] __attribute__((aligned(LINE_BYTES)));
  for (int q = 0; q < num_queries; q++) KV(score_near)(mine[q].query, scale, near, mine[q].num_keys, head_dim, scores[q]);
  for (int q = 0; q < num_queries; q++) {
    *mine[q].state = (softmax){-INFINITY, 0.0f};
    if (cap != 0.0f) cap_scores(scores[q], mine[q].num_keys, cap);
    take_block(scores[q], mine[q].num_keys, &mine[q].state->highest, &mine[q].state->total);
    KV(round_weights)(scores[q]);
  }
  KV(add_near)(mine, num_queries, scores, pairs, head_dim);
}

INLINE void KV(attend_heads)(const NAME(paged_decode_call) *call, int64_t first_split, KV(stretch) keys, int64_t head,
                             int64_t num_heads, const int head_dim) {
  const decode_plan *plan = call->plan;
  const int64_t queries = call->of.queries_a_head;
  const float scale = (float)call->of.scale * LOG2_E, cap = (float)call->of.softcap * LOG2_E;
  uint16_t near[BLOCK * SUMS_SIZE(MAX_HEAD_DIM)] __attribute__((aligned(LINE_BYTES)));
  __m512i pairs[BLOCK / 2 * (SUMS_SIZE(MAX_HEAD_DIM) / 16)];
  for (int64_t h = 0; h < num_heads; h++) {
    KV(near_query) batch[NEAR_QUERIES];
    int count = 0;
    KV(copy_keys)(keys.from + h * head_dim, keys.offsets, keys.num_tokens, head_dim, near);
    KV(pair_values)((const uint16_t *)call->of.values + h * head_dim, keys.offsets, keys.num_tokens, head_dim, pairs);
    for (int64_t split = first_split; split != NO_SPLIT; split = plan->splits[split].next) {
      const uint16_t *row = (const uint16_t *)call->of.query + plan->splits[split].row * call->of.query_stride;
      const uint16_t *query = row + (head + h) * queries * head_dim;
      const int64_t place = (split * call->of.num_heads + head + h) * queries;
      for (int64_t q = 0; q < queries; q++) {
        float *sums = call->sums + (place + q) * SUMS_SIZE(head_dim);
        batch[count++] = (KV(near_query)){query + q * head_dim, split_keys(plan, split), call->softmaxes + place + q, sums};
        if (count == NEAR_QUERIES) {
          KV(attend_near)(batch, count, scale, cap, near, pairs, head_dim);
          count = 0;
        }
      }
    }
    KV(attend_near)(batch, count, scale, cap, near, pairs, head_dim);
  }
}

/* Attends to a group's keys with the rows of all splits from `split` on. */
static void KV(attend_near_rows)(const NAME(paged_decode_call) *call, int64_t split, KV(stretch) keys, int64_t head,
                                 int64_t num_heads) {
  switch (call->of.head_dim) {
    case 64: KV(attend_heads)(call, split, keys, head, num_heads, 64); break;
    case 80: KV(attend_heads)(call, split, keys, head, num_heads, 80); break;
    case 96: KV(attend_heads)(call, split, keys, head, num_heads, 96); break;
    case 128: KV(attend_heads)(call, split, keys, head, num_heads, 128); break;
    default: KV(attend_heads)(call, split, keys, head, num_heads, (int)call->of.head_dim);
  }
}
