/* Attention of rows with one new token each: kernels/paged_decode.py says what it does.

   An item is (row, SPLIT_KEYS keys of it, some key/value heads). What is computed for a head, and the order in which a
   row's splits are put together, hang on the row's length alone: its result is the same whatever the batch and threads.
   A head's part of a token is two cache lines or four, too short for the processor to foresee the next. So memory is
   read in its order, some tokens with all the item's heads and then the next; an item has as many heads as leave the
   threads items enough. */

#ifndef SLUICE_SPLIT_KEYS
#define SLUICE_SPLIT_KEYS
enum { SPLIT_KEYS = 256, ENOUGH_ITEMS = 16, MAX_ITEM_QUERIES = 64, NEAR_KEYS = 4 };
#define SUMS_SIZE(head_dim) (((head_dim) + 31) / 32 * 32) /* whole vectors of bfloat16 */
#endif

typedef struct {
  NAME(paged_kv) cache;
  const element *query;
  element *out;
  const int32_t *page_tables, *num_keys;
  int64_t query_stride, table_stride, queries_a_head;
  float scale;
  const int64_t *first_split; /* [rows + 1] */
  float *partial;             /* a split and head: highest, total, sums of each query */
  int64_t partial_size, num_rows, heads_an_item;
} NAME(paged_decode_call);

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

INLINE void NAME(score_keys)(const uint16_t *query, const uint16_t *keys, const int64_t *offsets, int num_keys,
                             const int head_dim, float scale, float *scores) {
  for (int j = 0; j < num_keys; j += 4) {
    __m512 lanes[4];
    for (int k = 0; k < 4; k++)
      lanes[k] = NAME(dot_lanes)(query, keys + offsets[j + k < num_keys ? j + k : j], head_dim);
    const __m128 sums = NAME(sum_lanes)(lanes[0], lanes[1], lanes[2], lanes[3]);
    _mm_storeu_ps(scores + j, _mm_mul_ps(sums, _mm_set1_ps(scale)));
  }
}

/* 32 elements of two keys after the other become two vectors of sums, of the first and the second four of each eight
   elements: put_in_order says where they belong. Weights are rounded as the prefill's are. */
INLINE void NAME(add_values)(const float *weights, const uint16_t *values, const int64_t *offsets, int num_keys,
                             const int head_dim, float factor, float *sums) {
  __m512bh pairs[NEAR_KEYS / 2];
  for (int j = 0; j < NEAR_KEYS; j += 2) { /* beyond the last key weights are 0 */
    const uint32_t both = (uint32_t)narrow_bfloat16(weights[j + 1]) << 16 | narrow_bfloat16(weights[j]);
    pairs[j / 2] = (__m512bh)_mm512_set1_epi32((int32_t)both);
  }
  for (int first = 0; first < head_dim; first += 32) {
    const __mmask32 lanes = head_dim - first >= 32 ? 0xffffffffu : (__mmask32)((1ull << (head_dim - first)) - 1);
    __m512 low = _mm512_mul_ps(_mm512_loadu_ps(sums + first), _mm512_set1_ps(factor));
    __m512 high = _mm512_mul_ps(_mm512_loadu_ps(sums + first + 16), _mm512_set1_ps(factor));
    for (int j = 0; j < num_keys; j += 2) {
      const __m512i even = _mm512_maskz_loadu_epi16(lanes, values + offsets[j] + first);
      const __m512i odd = j + 1 < num_keys ? _mm512_maskz_loadu_epi16(lanes, values + offsets[j + 1] + first)
                                           : _mm512_setzero_si512();
      low = _mm512_dpbf16_ps(low, pairs[j / 2], (__m512bh)_mm512_unpacklo_epi16(even, odd));
      high = _mm512_dpbf16_ps(high, pairs[j / 2], (__m512bh)_mm512_unpackhi_epi16(even, odd));
    }
    _mm512_storeu_ps(sums + first, low);
    _mm512_storeu_ps(sums + first + 16, high);
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
INLINE void NAME(score_keys)(const element *query, const element *keys, const int64_t *offsets, int num_keys,
                             const int head_dim, float scale, float *scores) {
  for (int j = 0; j < num_keys; j++) {
    const element *key = keys + offsets[j];
    float sum = 0.0f;
    SIMD_SUM(sum) for (int i = 0; i < head_dim; i++) sum += WIDEN(query[i]) * WIDEN(key[i]);
    scores[j] = sum * scale;
  }
}

INLINE void NAME(add_values)(const float *weights, const element *values, const int64_t *offsets, int num_keys,
                             const int head_dim, float factor, float *sums) {
  SIMD for (int i = 0; i < head_dim; i++) sums[i] *= factor;
  for (int j = 0; j < num_keys; j++) {
    const element *value = values + offsets[j];
    SIMD for (int i = 0; i < head_dim; i++) sums[i] += weights[j] * WIDEN(value[i]);
  }
}

INLINE void NAME(put_in_order)(float *sums, const int head_dim) {
  (void)sums, (void)head_dim;
}
#endif

/* Attends to keys [first, end) of a row with all queries of `num_heads` heads from `head` on. state: per query the highest
   score, the total weight, the weighted sums; a head's queries are `partial_size` after those of the head before.
   While a block's keys are read, its values are asked for, and while those are read, the next block's keys. */
INLINE void NAME(attend_keys)(const NAME(paged_decode_call) *call, const element *query, const int32_t *pages,
                              int64_t head, int64_t num_heads, int64_t first, int64_t end, const int head_dim,
                              float *state) {
  const int64_t num_queries = call->queries_a_head, state_size = SUMS_SIZE(head_dim) + 2;
  const float scale = call->scale * LOG2_E;
  const int num_all = (int)(end - first);
  const element *keys = call->cache.keys, *values = call->cache.values;
  float scores[MAX_ITEM_QUERIES * BLOCK], factors[MAX_ITEM_QUERIES];
  int64_t offsets[SPLIT_KEYS];
  NAME(find_tokens)(&call->cache, pages, head, first, num_all, offsets);
  memset(state, 0, (size_t)(num_heads * call->partial_size) * sizeof(float));
  for (int64_t q = 0; q < num_heads * num_queries; q++) state[q * state_size] = -INFINITY;
  for (int begin = 0; begin < num_all; begin += BLOCK) {
    const int num_keys = num_all - begin < BLOCK ? num_all - begin : BLOCK;
    const int num_next = num_all - begin - BLOCK < BLOCK ? num_all - begin - BLOCK : BLOCK;
    const int64_t *here = offsets + begin;
    for (int j = 0; j < num_keys; j += NEAR_KEYS) {
      const int near = num_keys - j < NEAR_KEYS ? num_keys - j : NEAR_KEYS;
      NAME(ask_for)(values, here + j, near, num_heads * head_dim);
      for (int64_t h = 0, q = 0; h < num_heads; h++)
        for (const int64_t beyond = q + num_queries; q < beyond; q++)
          NAME(score_keys)(query + q * head_dim, keys + h * head_dim, here + j, near, head_dim, scale,
                           scores + q * BLOCK + j);
    }
    for (int64_t q = 0; q < num_heads * num_queries; q++)
      factors[q] = take_block(scores + q * BLOCK, num_keys, state + q * state_size, state + q * state_size + 1);
    for (int j = 0; j < num_keys; j += NEAR_KEYS) {
      const int near = num_keys - j < NEAR_KEYS ? num_keys - j : NEAR_KEYS;
      const int near_next = num_next - j < NEAR_KEYS ? num_next - j : NEAR_KEYS;
      NAME(ask_for)(keys, here + BLOCK + j, near_next, num_heads * head_dim);
      for (int64_t h = 0, q = 0; h < num_heads; h++)
        for (const int64_t beyond = q + num_queries; q < beyond; q++)
          NAME(add_values)(scores + q * BLOCK + j, values + h * head_dim, here + j, near, head_dim,
                           j ? 1.0f : factors[q], state + q * state_size + 2);
    }
  }
  for (int64_t q = 0; q < num_heads * num_queries; q++) NAME(put_in_order)(state + q * state_size + 2, head_dim);
}

static void NAME(paged_decode_item)(const void *data, int64_t item) {
  const NAME(paged_decode_call) *call = data;
  const int64_t num_heads = call->cache.num_heads, head_dim = call->cache.head_dim, queries = call->queries_a_head;
  const int64_t groups = (num_heads + call->heads_an_item - 1) / call->heads_an_item;
  const int64_t split_index = item / groups, head = item % groups * call->heads_an_item;
  const int64_t rest = num_heads - head, count = rest < call->heads_an_item ? rest : call->heads_an_item;
  int64_t row = 0, beyond = call->num_rows;
  while (beyond - row > 1) {
    const int64_t middle = (row + beyond) / 2;
    if (call->first_split[middle] <= split_index) row = middle;
    else beyond = middle;
  }
  const int64_t first = (split_index - call->first_split[row]) * SPLIT_KEYS, num_keys = call->num_keys[row];
  const int64_t end = first + SPLIT_KEYS < num_keys ? first + SPLIT_KEYS : num_keys;
  const element *query = call->query + row * call->query_stride + head * queries * head_dim;
  const int32_t *pages = call->page_tables + row * call->table_stride;
  float *state = call->partial + (split_index * num_heads + head) * call->partial_size;
  switch (head_dim) {
    case 64: NAME(attend_keys)(call, query, pages, head, count, first, end, 64, state); break;
    case 80: NAME(attend_keys)(call, query, pages, head, count, first, end, 80, state); break;
    case 96: NAME(attend_keys)(call, query, pages, head, count, first, end, 96, state); break;
    case 128: NAME(attend_keys)(call, query, pages, head, count, first, end, 128, state); break;
    default: NAME(attend_keys)(call, query, pages, head, count, first, end, (int)head_dim, state);
  }
}

/* Puts the splits of one row and query together, in their order. */
static void NAME(paged_decode_merge)(const NAME(paged_decode_call) *call, int64_t row, int64_t head, int64_t q) {
  const int64_t head_dim = call->cache.head_dim, num_heads = call->cache.num_heads, queries = call->queries_a_head;
  const int64_t first = call->first_split[row], end = call->first_split[row + 1];
  const int64_t step = num_heads * call->partial_size;
  const float *states = call->partial + first * step + head * call->partial_size + q * (SUMS_SIZE(head_dim) + 2);
  element *out = call->out + ((row * num_heads + head) * queries + q) * head_dim;
  float highest = -INFINITY, total = 0.0f, sums[MAX_HEAD_DIM] = {0};
  for (int64_t i = 0; i < end - first; i++) highest = states[i * step] > highest ? states[i * step] : highest;
  for (int64_t i = 0; i < end - first; i++) {
    const float *state = states + i * step, factor = power_of_2(state[0] - highest);
    total += state[1] * factor;
    SIMD for (int64_t d = 0; d < head_dim; d++) sums[d] += state[2 + d] * factor;
  }
  const float inverse = 1.0f / total;
  SIMD for (int64_t d = 0; d < head_dim; d++) out[d] = NARROW(sums[d] * inverse);
}

static void NAME(paged_decode_row)(const void *data, int64_t row) {
  const NAME(paged_decode_call) *call = data;
  for (int64_t head = 0; head < call->cache.num_heads; head++)
    for (int64_t q = 0; q < call->queries_a_head; q++) NAME(paged_decode_merge)(call, row, head, q);
}

/* query: [rows, num_heads * queries_a_head, head_dim], rows `query_stride` elements apart; out: the same, contiguous.
   page_tables: rows `table_stride` apart. Returns 0, or -1 without memory. */
PUBLIC int NAME(paged_decode)(const element *query, int64_t query_stride, const element *keys, const element *values,
                              const int32_t *page_tables, int64_t table_stride, const int32_t *num_keys, element *out,
                              int64_t num_rows, int64_t num_heads, int64_t queries_a_head, int64_t head_dim,
                              int64_t page_size, float scale) {
  if (num_rows == 0) return 0;
  int64_t *first_split = malloc((size_t)(num_rows + 1) * sizeof *first_split), total_keys = 0;
  if (!first_split) return -1;
  first_split[0] = 0;
  for (int64_t row = 0; row < num_rows; row++) {
    first_split[row + 1] = first_split[row] + (num_keys[row] + SPLIT_KEYS - 1) / SPLIT_KEYS;
    total_keys += num_keys[row];
  }
  const int64_t num_splits = first_split[num_rows], partial_size = queries_a_head * (SUMS_SIZE(head_dim) + 2);
  if (num_splits == 0) { /* rows of no keys are padding */
    free(first_split);
    return 0;
  }
  float *partial = malloc((size_t)(num_splits * num_heads * partial_size) * sizeof *partial);
  if (!partial) {
    free(first_split);
    return -1;
  }
  const int64_t wanted_groups = (ENOUGH_ITEMS + num_splits - 1) / num_splits, most_heads = MAX_ITEM_QUERIES / queries_a_head;
  int64_t heads_an_item = wanted_groups < num_heads ? num_heads / wanted_groups : 1;
  if (heads_an_item > most_heads) heads_an_item = most_heads;
  const int64_t groups = (num_heads + heads_an_item - 1) / heads_an_item;
  NAME(paged_decode_call)
  call = {{keys, values, num_heads, head_dim, page_size}, query, out, page_tables, num_keys, query_stride, table_stride,
          queries_a_head, scale, first_split, partial, partial_size, num_rows, heads_an_item};
  run_items(num_splits * groups, total_keys * num_heads * (head_dim + queries_a_head * head_dim), NAME(paged_decode_item), &call);
  run_items(num_rows, num_splits * num_heads * partial_size / 4, NAME(paged_decode_row), &call);
  free(partial);
  free(first_split);
  return 0;
}
