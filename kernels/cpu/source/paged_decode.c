/* Attention of rows with one new token each: kernels/paged_decode.py says what it does.

   A row's keys are cut into splits of BLOCK keys, from its first key on. An item is (some splits, some key/value heads),
   and a split is done for all rows that have its keys in the same pages, one row after the other, while they are near.
   What is computed for a head of a row, and the order in which its splits are put together, hang on the row's length
   alone: its result is the same whatever the batch and threads.
   A head's part of a token is two cache lines or four and pages lie anywhere, which no processor foresees. So what an
   item reads is asked for in the order of memory, some tokens with all the item's heads and then the next, from the
   first split's K through its V to the last split's V; an item has as many heads as leave the threads items enough. */

#ifndef SLUICE_PAGED_DECODE
#define SLUICE_PAGED_DECODE
enum {
  ENOUGH_ITEMS = 16, /* else heads are parted */
  MANY_ITEMS = 32,   /* then an item is up to MAX_GROUPS splits, one after the other */
  MAX_GROUPS = 4,
  MAX_ITEM_QUERIES = 64,
  NEAR_KEYS = 4,
  AHEAD_BYTES = 12 << 10
};
#define SUMS_SIZE(head_dim) (((head_dim) + 31) / 32 * 32) /* whole vectors of bfloat16 */

/* A query's highest score in a split, and the total of its weights, which are relative to that. */
typedef struct {
  float highest, total;
} softmax;
#endif

typedef struct {
  NAME(paged_kv) cache;
  const element *query;
  element *out;
  int64_t query_stride, queries_a_head;
  float scale;
  const decode_plan *plan;
  softmax *softmaxes; /* [splits, heads, queries] */
  float *sums;        /* [splits, heads, queries, SUMS_SIZE] */
  int64_t heads_an_item, groups_an_item;
} NAME(paged_decode_call);

/* Tokens in the order in which they are read, some heads of each. */
typedef struct {
  const kv_element *from;
  const int64_t *offsets;
  int num_tokens;
} NAME(stretch);

/* Asks for tokens [j, j + num_tokens) of `here` and what comes after it. */
INLINE void NAME(ask_beyond)(NAME(stretch) here, NAME(stretch) next, int j, int num_tokens, int64_t size) {
  const int left = here.num_tokens - j, from_here = left < 0 ? 0 : left < num_tokens ? left : num_tokens;
  if (from_here) NAME(ask_for)(here.from, here.offsets + j, from_here, size);
  const int skip = left < 0 ? -left : 0, rest = num_tokens - from_here, most = next.num_tokens - skip;
  if (rest && most > 0) NAME(ask_for)(next.from, next.offsets + skip, rest < most ? rest : most, size);
}

/* Asks for head `h`'s share of these tokens, whole ones: asked for all at once, they would wait for one another. */
INLINE void NAME(ask_share)(NAME(stretch) here, NAME(stretch) next, int j, int num_tokens, int64_t h, int64_t num_heads,
                            int64_t head_dim) {
  const int begin = (int)(h * num_tokens / num_heads), end = (int)((h + 1) * num_tokens / num_heads);
  if (begin < end) NAME(ask_beyond)(here, next, j + begin, end - begin, num_heads * head_dim);
}

#if IS_BFLOAT16 && defined(__AVX512BF16__)
INLINE __m512 NAME(dot_lanes)(const uint16_t *query, const uint16_t *key, const int head_dim) {
  __m512 sum = _mm512_setzero_ps();
  int i = 0;
  for (; i + 32 <= head_dim; i += 32)
    sum = _mm512_dpbf16_ps(sum, (__m512bh)_mm512_loadu_si512(query + i), (__m512bh)_mm512_loadu_si512(key + i));
  if (i < head_dim) {
    const __mmask32 rest = (__mmask32)((1ull << (head_dim - i)) - 1);
    sum = _mm512_dpbf16_ps(sum, (__m512bh)_mm512_maskz_loadu_epi16(rest, query + i),
                           (__m512bh)_mm512_maskz_loadu_epi16(rest, key + i));
  }
  return sum;
}

/* The sums of four vectors; each in the same order of additions. */
INLINE __m128 NAME(sum_lanes)(__m512 a, __m512 b, __m512 c, __m512 d) {
  __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
  __m512 all = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd))),
                             _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd))));
  __m256 half = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
  return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}

/* Scores of some keys with the queries of their head; a query's scores are BLOCK after those of the query before. */
INLINE void NAME(score_keys)(const uint16_t *query, int64_t num_queries, const uint16_t *keys, const int64_t *offsets,
                             int num_keys, const int head_dim, float scale, float *scores) {
  for (int64_t q = 0; q < num_queries; q++, query += head_dim, scores += BLOCK) {
    __m512 lanes[NEAR_KEYS];
    for (int k = 0; k < NEAR_KEYS; k++) lanes[k] = NAME(dot_lanes)(query, keys + offsets[k < num_keys ? k : 0], head_dim);
    const __m128 sums = NAME(sum_lanes)(lanes[0], lanes[1], lanes[2], lanes[3]);
    _mm_storeu_ps(scores, _mm_mul_ps(sums, _mm_set1_ps(scale)));
  }
}

/* Rounds a block's weights as the prefill's are, in place: a number holds those of two keys. */
INLINE void NAME(round_weights)(float *weights) {
  for (int j = 0; j < BLOCK; j += 32) {
    const __m512bh both = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(weights + j + 16), _mm512_loadu_ps(weights + j));
    _mm512_storeu_ps(weights + j / 2, _mm512_castsi512_ps((__m512i)both));
  }
}

/* Adds keys [j, j + num_keys) of a block. 32 elements of two keys after the other become two vectors of sums, of the first
   and the second four of each eight elements: put_in_order says where they belong. */
INLINE void NAME(add_values)(const float *weights, int j, int64_t num_queries, const uint16_t *values,
                             const int64_t *offsets, int num_keys, const int head_dim, float *sums) {
  for (int first = 0; first < head_dim; first += 32) {
    const __mmask32 lanes = head_dim - first >= 32 ? 0xffffffffu : (__mmask32)((1ull << (head_dim - first)) - 1);
    __m512i low[NEAR_KEYS / 2], high[NEAR_KEYS / 2];
    for (int k = 0; k < NEAR_KEYS; k += 2) {
      const __m512i even = k < num_keys ? _mm512_maskz_loadu_epi16(lanes, values + offsets[k] + first) : _mm512_setzero_si512();
      const __m512i odd = k + 1 < num_keys ? _mm512_maskz_loadu_epi16(lanes, values + offsets[k + 1] + first)
                                           : _mm512_setzero_si512();
      low[k / 2] = _mm512_unpacklo_epi16(even, odd);
      high[k / 2] = _mm512_unpackhi_epi16(even, odd);
    }
    for (int64_t q = 0; q < num_queries; q++) {
      float *mine = sums + q * SUMS_SIZE(head_dim) + first;
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

INLINE void NAME(put_in_order)(float *sums, const int head_dim) {
  const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
  for (int i = 0; i < head_dim; i += 32) {
    const __m512 low = _mm512_loadu_ps(sums + i), high = _mm512_loadu_ps(sums + i + 16);
    _mm512_storeu_ps(sums + i, _mm512_permutex2var_ps(low, first, high));
    _mm512_storeu_ps(sums + i + 16, _mm512_permutex2var_ps(low, second, high));
  }
}
#else
INLINE void NAME(score_keys)(const element *query, int64_t num_queries, const kv_element *keys, const int64_t *offsets,
                             int num_keys, const int head_dim, float scale, float *scores) {
  for (int64_t q = 0; q < num_queries; q++, query += head_dim, scores += BLOCK)
    for (int k = 0; k < num_keys; k++) {
      const kv_element *key = keys + offsets[k];
      float sum = 0.0f;
      SIMD_SUM(sum) for (int i = 0; i < head_dim; i++) sum += WIDEN(query[i]) * WIDEN_KV(key[i]);
      scores[k] = sum * scale;
    }
}

INLINE void NAME(round_weights)(float *weights) { (void)weights; }

INLINE void NAME(add_values)(const float *weights, int j, int64_t num_queries, const kv_element *values,
                             const int64_t *offsets, int num_keys, const int head_dim, float *sums) {
  for (int64_t q = 0; q < num_queries; q++, weights += BLOCK, sums += SUMS_SIZE(head_dim))
    for (int k = 0; k < num_keys; k++) {
      const kv_element *value = values + offsets[k];
      SIMD for (int i = 0; i < head_dim; i++) sums[i] += weights[j + k] * WIDEN_KV(value[i]);
    }
}

INLINE void NAME(put_in_order)(float *sums, const int head_dim) {
  (void)sums, (void)head_dim;
}
#endif

/* Attends to a split's keys with all queries of `num_heads` heads of a row. What is `ahead` tokens further on, with `next`
   after the split's V, is asked for; where `ahead` is 0, it is near already. */
INLINE void NAME(attend_split)(const NAME(paged_decode_call) *call, const element *query, NAME(stretch) keys,
                               NAME(stretch) next, int64_t num_heads, const int head_dim, int ahead, softmax *softmaxes,
                               float *sums) {
  const int64_t queries = call->queries_a_head, num_queries = num_heads * queries;
  const float scale = call->scale * LOG2_E;
  const int num_keys = keys.num_tokens;
  const NAME(stretch) values = {call->cache.values, keys.offsets, num_keys};
  float scores[MAX_ITEM_QUERIES * BLOCK];
  for (int j = 0; j < num_keys; j += NEAR_KEYS) {
    const int near = num_keys - j < NEAR_KEYS ? num_keys - j : NEAR_KEYS;
    for (int64_t h = 0; h < num_heads; h++) {
      if (ahead) NAME(ask_share)(keys, values, j + ahead, near, h, num_heads, head_dim);
      NAME(score_keys)(query + h * queries * head_dim, queries, keys.from + h * head_dim, keys.offsets + j, near, head_dim,
                       scale, scores + h * queries * BLOCK + j);
    }
  }
  for (int64_t q = 0; q < num_queries; q++) {
    softmaxes[q] = (softmax){-INFINITY, 0.0f};
    take_block(scores + q * BLOCK, num_keys, &softmaxes[q].highest, &softmaxes[q].total);
    NAME(round_weights)(scores + q * BLOCK);
  }
  memset(sums, 0, (size_t)(num_queries * SUMS_SIZE(head_dim)) * sizeof(float));
  for (int j = 0; j < num_keys; j += NEAR_KEYS) {
    const int near = num_keys - j < NEAR_KEYS ? num_keys - j : NEAR_KEYS;
    for (int64_t h = 0; h < num_heads; h++) {
      if (ahead) NAME(ask_share)(values, next, j + ahead, near, h, num_heads, head_dim);
      NAME(add_values)(scores + h * queries * BLOCK, j, queries, values.from + h * head_dim, values.offsets + j, near,
                       head_dim, sums + h * queries * SUMS_SIZE(head_dim));
    }
  }
  for (int64_t q = 0; q < num_queries; q++) NAME(put_in_order)(sums + q * SUMS_SIZE(head_dim), head_dim);
}

/* Finds the keys of a group of splits, from head `head` on. */
static NAME(stretch) NAME(find_keys)(const NAME(paged_decode_call) *call, int64_t group, int64_t head, int64_t *offsets) {
  const decode_plan *plan = call->plan;
  const int64_t split = plan->groups[group], row = plan->splits[split].row, start = split_start(plan, split);
  const int64_t left = plan->num_keys[row] - start;
  const int num_keys = left < BLOCK ? (int)left : BLOCK;
  NAME(find_tokens)(&call->cache, plan->page_tables + row * plan->table_stride, head, start, num_keys, offsets);
  return (NAME(stretch)){call->cache.keys, offsets, num_keys};
}

static void NAME(paged_decode_item)(const void *data, int64_t item) {
  const NAME(paged_decode_call) *call = data;
  const decode_plan *plan = call->plan;
  const int64_t num_heads = call->cache.num_heads, head_dim = call->cache.head_dim, queries = call->queries_a_head;
  const int64_t parts = (num_heads + call->heads_an_item - 1) / call->heads_an_item;
  const int64_t head = item % parts * call->heads_an_item, rest = num_heads - head;
  const int64_t count = rest < call->heads_an_item ? rest : call->heads_an_item, size = count * head_dim;
  const int64_t begin = item / parts * call->groups_an_item, beyond = begin + call->groups_an_item;
  const int64_t end = beyond < plan->num_groups ? beyond : plan->num_groups;
  const int tokens_ahead = (int)(AHEAD_BYTES / (size * (int64_t)sizeof(kv_element))) + 1;
  int64_t offsets[2][BLOCK];
  NAME(stretch) keys = NAME(find_keys)(call, begin, head, offsets[0]), next = keys;
  NAME(ask_beyond)(keys, (NAME(stretch)){call->cache.values, offsets[0], keys.num_tokens}, 0, tokens_ahead, size);
  for (int64_t group = begin; group < end; group++, keys = next) {
    if (group + 1 < end) next = NAME(find_keys)(call, group + 1, head, offsets[(group + 1 - begin) % 2]);
    else next.num_tokens = 0;
    int ahead = tokens_ahead;
    int64_t split = plan->groups[group];
    do {
      const element *query = call->query + plan->splits[split].row * call->query_stride + head * queries * head_dim;
      const int64_t place = (split * num_heads + head) * queries;
      softmax *softmaxes = call->softmaxes + place;
      float *sums = call->sums + place * SUMS_SIZE(head_dim);
      switch (head_dim) {
        case 64: NAME(attend_split)(call, query, keys, next, count, 64, ahead, softmaxes, sums); break;
        case 80: NAME(attend_split)(call, query, keys, next, count, 80, ahead, softmaxes, sums); break;
        case 96: NAME(attend_split)(call, query, keys, next, count, 96, ahead, softmaxes, sums); break;
        case 128: NAME(attend_split)(call, query, keys, next, count, 128, ahead, softmaxes, sums); break;
        default: NAME(attend_split)(call, query, keys, next, count, (int)head_dim, ahead, softmaxes, sums);
      }
      ahead = 0;
      split = plan->splits[split].next;
    } while (split != NO_SPLIT);
  }
}

/* Puts the splits of one row and query together, in their order. */
static void NAME(paged_decode_merge)(const NAME(paged_decode_call) *call, int64_t row, int64_t query) {
  const int64_t head_dim = call->cache.head_dim, step = call->cache.num_heads * call->queries_a_head;
  const int64_t first = call->plan->first_split[row] * step + query, end = call->plan->first_split[row + 1] * step;
  element *out = call->out + (row * step + query) * head_dim;
  float highest = -INFINITY, total = 0.0f, sums[MAX_HEAD_DIM] = {0};
  for (int64_t i = first; i < end; i += step)
    highest = call->softmaxes[i].highest > highest ? call->softmaxes[i].highest : highest;
  for (int64_t i = first; i < end; i += step) {
    const float factor = power_of_2(call->softmaxes[i].highest - highest), *more = call->sums + i * SUMS_SIZE(head_dim);
    total += call->softmaxes[i].total * factor;
    SIMD for (int64_t d = 0; d < head_dim; d++) sums[d] += more[d] * factor;
  }
  const float inverse = 1.0f / total;
  SIMD for (int64_t d = 0; d < head_dim; d++) out[d] = NARROW(sums[d] * inverse);
}

static void NAME(paged_decode_row)(const void *data, int64_t row) {
  const NAME(paged_decode_call) *call = data;
  for (int64_t query = 0; query < call->cache.num_heads * call->queries_a_head; query++)
    NAME(paged_decode_merge)(call, row, query);
}

/* query: [rows, num_heads * queries_a_head, head_dim], rows `query_stride` elements apart; out: the same, contiguous.
   page_tables: rows `table_stride` apart. Returns 0, or -1 without memory. */
PUBLIC int NAME(paged_decode)(const element *query, int64_t query_stride, const kv_element *keys, const kv_element *values,
                              const int32_t *page_tables, int64_t table_stride, const int32_t *num_keys, element *out,
                              int64_t num_rows, int64_t num_heads, int64_t queries_a_head, int64_t head_dim,
                              int64_t page_size, float scale) {
  decode_plan plan = {page_tables, num_keys, table_stride, page_size, num_rows, 0, 0, 0, NULL, NULL, NULL};
  if (plan_splits(&plan)) return -1;
  const int64_t num_splits = plan.num_splits, num_sums = num_splits * num_heads * queries_a_head;
  if (num_splits == 0) { /* rows of no keys are padding */
    free(plan.first_split);
    return 0;
  }
  const size_t sums_bytes = (size_t)(num_sums * SUMS_SIZE(head_dim)) * sizeof(float); /* whole lines */
  float *sums = aligned_alloc(LINE_BYTES, sums_bytes + ((size_t)num_sums * sizeof(softmax) | (LINE_BYTES - 1)) + 1);
  if (!sums) {
    free(plan.first_split);
    return -1;
  }
  const int64_t wanted_parts = (ENOUGH_ITEMS + plan.num_groups - 1) / plan.num_groups;
  const int64_t most_heads = MAX_ITEM_QUERIES / queries_a_head;
  int64_t heads_an_item = wanted_parts < num_heads ? num_heads / wanted_parts : 1;
  if (heads_an_item > most_heads) heads_an_item = most_heads;
  const int64_t in_a_row = plan.num_groups / MANY_ITEMS;
  const int64_t groups_an_item = in_a_row < 1 ? 1 : in_a_row < MAX_GROUPS ? in_a_row : MAX_GROUPS;
  const int64_t num_items = (plan.num_groups + groups_an_item - 1) / groups_an_item *
                            ((num_heads + heads_an_item - 1) / heads_an_item);
  NAME(paged_decode_call)
  call = {{keys, values, num_heads, head_dim, page_size}, query, out, query_stride, queries_a_head, scale, &plan,
          (softmax *)(void *)((char *)sums + sums_bytes), sums, heads_an_item, groups_an_item};
  run_items(num_items, plan.total_keys * num_heads * (1 + queries_a_head) * head_dim, NAME(paged_decode_item), &call);
  run_items(num_rows, num_sums * SUMS_SIZE(head_dim) / 4, NAME(paged_decode_row), &call);
  free(sums);
  free(plan.first_split);
  return 0;
}
