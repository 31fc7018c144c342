/* One layer of the paged cache, and the softmax's running state. */

#ifndef SLUICE_PAGED_KV
#define SLUICE_PAGED_KV
enum { BLOCK = 64 /* keys at a time */, MAX_HEAD_DIM = 512, LINE_BYTES = 64 };

/* Queries that share K and V in one item, and queries per group, whose columns are side by side. Without AVX-512 a group is
   as large as one product in registers, so that its scores stay in the L1 cache. */
#if defined(__AVX512F__)
enum { MAX_QUERIES = 128, QUERY_STRIDE = 64 };
#else
enum { MAX_QUERIES = 192, QUERY_STRIDE = 16 };
#endif

/* Where a query's column begins in [groups, rows, QUERY_STRIDE]. */
INLINE int column_of(int query, int rows) { return query / QUERY_STRIDE * QUERY_STRIDE * rows + query % QUERY_STRIDE; }

/* Keeps scores between -cap and cap. Not inlined: most models have no cap, and the loops around it need the registers. */
static __attribute__((noinline)) void cap_scores(float *scores, int num_scores, float cap) {
  const float inverse = 1.0f / cap;
  SIMD for (int i = 0; i < num_scores; i++) scores[i] = cap * tanh_of(scores[i] * inverse);
}

/* Turns a block's scores of one query (already times log2 e) into weights, in place; returns the factor for the
   sums so far. Weights beyond `num_keys` are 0. */
INLINE float take_block(float *scores, int num_keys, float *highest, float *total) {
  for (int i = num_keys; i < BLOCK; i++) scores[i] = -INFINITY;
  float best = *highest, sum = 0.0f;
  _Pragma("omp simd reduction(max : best)") for (int i = 0; i < BLOCK; i++) best = scores[i] > best ? scores[i] : best;
  SIMD_SUM(sum) for (int i = 0; i < BLOCK; i++) {
    float weight = power_of_2(scores[i] - best);
    scores[i] = weight;
    sum += weight;
  }
  const float factor = power_of_2(*highest - best);
  *highest = best;
  *total = *total * factor + sum;
  return factor;
}
#endif

/* Sets `offsets` to the offsets of K and V of head `head` of a row's tokens, in elements. */
INLINE void NAME(find_tokens)(const NAME(paged_decode_arguments) *cache, const int32_t *pages, int64_t head, int64_t first,
                              int num_tokens, int64_t *offsets) {
  int64_t page_index = first / cache->page_size, offset = first % cache->page_size;
  for (int i = 0; i < num_tokens; i++) {
    const int64_t slot = pages[page_index] * cache->page_size + offset;
    offsets[i] = (slot * cache->num_heads + head) * cache->head_dim;
    if (++offset == cache->page_size) offset = 0, page_index++;
  }
}

/* The scale of K or V of the head whose codes begin at `offset`. */
INLINE float NAME(scale_at)(const uint16_t *scales, int64_t offset, int64_t head_dim) {
  return widen_bfloat16(scales[offset / head_dim]);
}
