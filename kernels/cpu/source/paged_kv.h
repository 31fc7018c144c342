/* One layer of the paged cache, and the softmax of a block of keys.

   A token's attention has the same bits however it is computed: keys are taken in blocks that begin at multiples of BLOCK,
   each block has a softmax and sums of V of its own, and blocks are merged in ascending order. */

#ifndef SLUICE_PAGED_KV
#define SLUICE_PAGED_KV
enum { BLOCK = 64 /* keys at a time */, MAX_HEAD_DIM = 576, LINE_BYTES = 64 };

#define PADDED_DIM(head_dim) (((head_dim) + 31) / 32 * 32) /* whole vectors of bfloat16 */

/* Queries that share K and V in one item, and queries per group, whose columns are side by side. Without AVX-512 a group is
   as large as one product in registers, so that its scores stay in the L1 cache. */
#if defined(__AVX512F__)
enum { MAX_QUERIES = 128, QUERY_STRIDE = 64 };
#else
enum { MAX_QUERIES = 192, QUERY_STRIDE = 16 };
#endif

/* Where a query's column begins in [groups, rows, QUERY_STRIDE]. */
INLINE int column_of(int query, int rows) { return query / QUERY_STRIDE * QUERY_STRIDE * rows + query % QUERY_STRIDE; }

#define LOWEST (-1e30f) /* the level before any key; a difference of infinities would not be a number */

/* A query's softmax over a block of keys, or over all blocks so far: weights are relative to 2^level, the highest one. */
typedef struct {
  float level, total;
} softmax;

/* a * b + c, rounded once if the processor can. */
INLINE float fused(float a, float b, float c) {
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

/* Keeps scores between -cap and cap. Not inlined: most models have no cap, and the loops around it need the registers. */
static __attribute__((noinline)) void cap_scores(float *scores, int num_scores, float cap) {
  const float inverse = 1.0f / cap;
  SIMD for (int i = 0; i < num_scores; i++) scores[i] = cap * tanh_of(scores[i] * inverse);
}

/* Keys of a block whose weights are added up one after the other; these totals are then added as a tree. */
enum { TOTAL_LANES = 16 };

/* Turns a block's scores of one query into weights, in place; those of keys before `begin` and from `end` on are 0. `rate`
   makes exponents of 2 of the scores. */
INLINE softmax weigh_floats(float *scores, int begin, int end, float rate) {
  for (int i = 0; i < begin; i++) scores[i] = -INFINITY;
  for (int i = end; i < BLOCK; i++) scores[i] = -INFINITY;
  float best = -INFINITY, totals[TOTAL_LANES] = {0};
  _Pragma("omp simd reduction(max : best)") for (int i = 0; i < BLOCK; i++) best = scores[i] > best ? scores[i] : best;
  const float level = best * rate;
  SIMD for (int i = 0; i < BLOCK; i++) scores[i] = power_of_2(fused(scores[i], rate, -level));
  for (int i = 0; i < BLOCK; i += TOTAL_LANES)
    SIMD for (int l = 0; l < TOTAL_LANES; l++) totals[l] += scores[i + l];
  for (int n = TOTAL_LANES / 2; n; n /= 2)
    for (int l = 0; l < n; l++) totals[l] += totals[l + n];
  return (softmax){level, totals[0]};
}

#if defined(__AVX512BF16__)
/* The same for weights that become bfloat16. */
INLINE softmax weigh_pairs(float *scores, int begin, int end, float rate) {
  const uint64_t seen = (end - begin == BLOCK ? ~0ull : (1ull << (end - begin)) - 1) << begin;
  __m512 highest = _mm512_set1_ps(-INFINITY), totals = _mm512_setzero_ps();
  for (int i = 0; i < BLOCK; i += 16) /* NaN is never the maximum */
    highest = _mm512_mask_max_ps(highest, (__mmask16)(seen >> i), _mm512_loadu_ps(scores + i), highest);
  const float level = _mm512_reduce_max_ps(highest) * rate;
  for (int i = 0; i < BLOCK; i += 16) {
    const __m512 power = _mm512_fmsub_ps(_mm512_loadu_ps(scores + i), _mm512_set1_ps(rate), _mm512_set1_ps(level));
    const __m512 weights = _mm512_maskz_mov_ps((__mmask16)(seen >> i), rough_powers_of_2(power));
    totals = _mm512_add_ps(totals, weights);
    _mm512_storeu_ps(scores + i, weights);
  }
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(totals), _mm512_extractf32x8_ps(totals, 1));
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return (softmax){level, _mm_cvtss_f32(four) + four[1]};
}
#endif
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
