/* Attention of rows with one new token each: kernels/paged_decode.py says what it does.

   An item is (row, SPLIT_KEYS keys of it, some key/value heads). What is computed for a head, and the order in which a
   row's splits are put together, hang on the row's length alone: its result is the same whatever the batch and threads.
   A head's part of a token is two cache lines or four, too short for the processor to foresee the next: while one head
   is computed, the lines of the next one, or of the next keys, are asked for. */

#ifndef SLUICE_SPLIT_KEYS
#define SLUICE_SPLIT_KEYS
enum { SPLIT_KEYS = 256, ENOUGH_ITEMS = 64 };
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
INLINE __m512 NAME(load_bf16)(__mmask16 lanes, const uint16_t *x) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, x)), 16));
}

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

INLINE void NAME(add_values)(const float *weights, const uint16_t *values, const int64_t *offsets, int num_keys,
                             const int head_dim, float factor, float *sums) {
  for (int first = 0; first < head_dim; first += 128) {
    const int size = head_dim - first < 128 ? head_dim - first : 128, num_vectors = (size + 15) / 16;
    __m512 sum[8];
    __mmask16 lanes[8];
    for (int i = 0; i < num_vectors; i++) {
      lanes[i] = size - 16 * i >= 16 ? 0xffff : (__mmask16)((1 << (size - 16 * i)) - 1);
      sum[i] = _mm512_mul_ps(_mm512_maskz_loadu_ps(lanes[i], sums + first + 16 * i), _mm512_set1_ps(factor));
    }
    for (int j = 0; j < num_keys; j++) {
      const __m512 weight = _mm512_set1_ps(weights[j]);
      const uint16_t *value = values + offsets[j] + first;
      for (int i = 0; i < num_vectors; i++)
        sum[i] = _mm512_fmadd_ps(weight, NAME(load_bf16)(lanes[i], value + 16 * i), sum[i]);
    }
    for (int i = 0; i < num_vectors; i++) _mm512_mask_storeu_ps(sums + first + 16 * i, lanes[i], sum[i]);
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
#endif

/* Attends to keys [first, end) of a row with all queries of `num_heads` heads from `head` on. state: per query the highest
   score, the total weight, the weighted sums; a head's queries are `partial_size` after those of the head before. */
INLINE void NAME(attend_keys)(const NAME(paged_decode_call) *call, const element *query, const int32_t *pages,
                              int64_t head, int64_t num_heads, int64_t first, int64_t end, const int head_dim,
                              float *state) {
  const int64_t num_queries = call->queries_a_head, state_size = head_dim + 2;
  memset(state, 0, (size_t)(num_heads * call->partial_size) * sizeof(float));
  for (int64_t q = 0; q < num_heads * num_queries; q++) state[q * state_size] = -INFINITY;
  int64_t buffers[2][BLOCK], *offsets = buffers[0], *next_offsets = buffers[1];
  int num_keys = end - first < BLOCK ? (int)(end - first) : BLOCK;
  NAME(find_tokens)(&call->cache, pages, head, first, num_keys, offsets);
  while (first < end) {
    float scores[BLOCK];
    const int64_t next = first + BLOCK;
    const int num_next = next >= end ? 0 : end - next < BLOCK ? (int)(end - next) : BLOCK;
    if (num_next) NAME(find_tokens)(&call->cache, pages, head, next, num_next, next_offsets);
    for (int64_t h = 0; h < num_heads; h++) {
      const element *keys = call->cache.keys + h * head_dim, *values = call->cache.values + h * head_dim;
      if (h + 1 < num_heads) NAME(ask_for)(keys + head_dim, values + head_dim, offsets, num_keys, head_dim);
      else NAME(ask_for)(call->cache.keys, call->cache.values, next_offsets, num_next, head_dim);
      for (int64_t q = 0; q < num_queries; q++) {
        const element *mine = query + (h * num_queries + q) * head_dim;
        float *sums = state + (h * num_queries + q) * state_size;
        NAME(score_keys)(mine, keys, offsets, num_keys, head_dim, call->scale * LOG2_E, scores);
        const float factor = take_block(scores, num_keys, sums, sums + 1);
        NAME(add_values)(scores, values, offsets, num_keys, head_dim, factor, sums + 2);
      }
    }
    int64_t *const read = offsets;
    offsets = next_offsets, next_offsets = read;
    first = next, num_keys = num_next;
  }
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
  const float *states = call->partial + first * step + head * call->partial_size + q * (head_dim + 2);
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
  const int64_t num_splits = first_split[num_rows], partial_size = queries_a_head * (head_dim + 2);
  if (num_splits == 0) { /* rows of no keys are padding */
    free(first_split);
    return 0;
  }
  float *partial = malloc((size_t)(num_splits * num_heads * partial_size) * sizeof *partial);
  if (!partial) {
    free(first_split);
    return -1;
  }
  const int64_t wanted_groups = (ENOUGH_ITEMS + num_splits - 1) / num_splits;
  const int64_t heads_an_item = wanted_groups < num_heads ? num_heads / wanted_groups : 1;
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
