/* A packed linear layer on vectors of 8 floats: a weight of bfloat16 becomes floats in the registers, once for up to
   6 rows. */

#ifndef SLUICE_LINEAR_FLOATS
#define SLUICE_LINEAR_FLOATS
#include <immintrin.h>

/* Rows of a group at most: two vectors of sums each. With up to 2 rows there are four. */
enum { LINEAR_MOST_ROWS = 6, LINEAR_FEW_ROWS = 2, LINEAR_MOST_VECTORS = 4 };

enum { LINEAR_ASKING_ROWS = 24 }; /* the most rows that prefetch a block: more would evict it from the cache again */

/* 8 inputs of 6 rows, to [8, 6]. */
INLINE void linear_transpose(const __m256 *rows, float *out) {
  for (int pair = 0; pair < 4; pair += 2) { /* inputs `pair`, the next one, and those 4 after them */
    __m256 both[3];
    for (int i = 0; i < 3; i++)
      both[i] = pair ? _mm256_unpackhi_ps(rows[2 * i], rows[2 * i + 1]) : _mm256_unpacklo_ps(rows[2 * i], rows[2 * i + 1]);
    const __m256 first = _mm256_shuffle_ps(both[0], both[1], 0x44), second = _mm256_shuffle_ps(both[0], both[1], 0xee);
    for (int half = 0; half < 2; half++) {
      float *to = out + (pair + 4 * half) * LINEAR_MOST_ROWS;
      const __m128 last_rows = half ? _mm256_extractf128_ps(both[2], 1) : _mm256_castps256_ps128(both[2]);
      _mm_storeu_ps(to, half ? _mm256_extractf128_ps(first, 1) : _mm256_castps256_ps128(first));
      _mm_storel_pi((__m64 *)(to + 4), last_rows);
      _mm_storeu_ps(to + LINEAR_MOST_ROWS, half ? _mm256_extractf128_ps(second, 1) : _mm256_castps256_ps128(second));
      _mm_storeh_pi((__m64 *)(to + LINEAR_MOST_ROWS + 4), last_rows);
    }
  }
}
#endif

/* Returns the first or the second weight of each of eight outputs. An output's LINEAR_PAIR weights are neighbours; in float32
   the next input's weights follow the block's 32. */
INLINE __m256 linear_weights(const element *weight, const int is_second) {
#if IS_BFLOAT16
  const __m256i pairs = _mm256_loadu_si256((const __m256i *)weight);
  return is_second ? _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32((int)0xffff0000u)))
                   : _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
#else
  return _mm256_loadu_ps(is_second ? weight + LINEAR_BLOCK : weight);
#endif
}

/* The first `count` of a row's sums become its outputs. */
INLINE void linear_store(const linear_call *call, int64_t row, int64_t first, float *sums, const int64_t count) {
  element *out = call->out + row * call->outputs + first;
  if (call->bias) SIMD for (int64_t i = 0; i < count; i++) sums[i] += WIDEN(call->bias[first + i]);
  if (call->gelu == TANH_GELU) SIMD for (int64_t i = 0; i < count; i++) sums[i] = gelu_tanh(sums[i]);
  if (call->gelu == EXACT_GELU) SIMD for (int64_t i = 0; i < count; i++) sums[i] = gelu_exact(sums[i]);
  SIMD for (int64_t i = 0; i < count; i++) out[i] = NARROW(sums[i]);
}

/* Writes `count` of a row's outputs from their sums, fewer at the end of the last block. */
INLINE void linear_finish(const linear_call *call, int64_t row, int64_t first, float *sums, const int size) {
  const int64_t left = call->outputs - first;
  if (left >= size) linear_store(call, row, first, sums, size);
  else linear_store(call, row, first, sums, left);
}

/* 8 outputs for each of `vectors` vectors, from the `offset`-th of a block on: all, or a half. The weights of a half are not
   contiguous, so the processor does not prefetch them: a call that `asks` prefetches half of the next block with each half.
   x: floats [inputs, rows]. */
INLINE void linear_product(const linear_call *call, int64_t row, int64_t block, int64_t offset, const int rows,
                           const int vectors, const int asks) {
  const element *weight = call->weight + block * call->inputs * LINEAR_BLOCK + LINEAR_PAIR * offset;
  const float *x = (const float *)call->prepared + row * call->inputs;
  const char *later = (const char *)(call->weight + (block + 1) * call->inputs * LINEAR_BLOCK);
  if (offset) later += call->inputs * LINEAR_BLOCK * (int64_t)sizeof(element) / 2;
  __m256 sum[LINEAR_MOST_ROWS][LINEAR_MOST_VECTORS], numbers[LINEAR_MOST_VECTORS];
  for (int r = 0; r < rows; r++)
    for (int v = 0; v < vectors; v++) sum[r][v] = _mm256_setzero_ps();
  for (int64_t input = 0; input < call->inputs; input += 2, weight += 2 * LINEAR_BLOCK, x += 2 * rows)
    for (int which = 0; which < 2; which++) {
      if (asks && which % LINEAR_PAIR == 0) __builtin_prefetch(later, 0, 2), later += 64;
      for (int v = 0; v < vectors; v++) {
        numbers[v] = linear_weights(weight + 8 * LINEAR_PAIR * v, which);
        if (rows > 1) __asm__("" : "+x"(numbers[v])); /* or GCC may read it again for each product */
      }
      for (int r = 0; r < rows; r++) {
        const __m256 mine = _mm256_broadcast_ss(x + which * rows + r);
        for (int v = 0; v < vectors; v++) sum[r][v] = _mm256_fmadd_ps(mine, numbers[v], sum[r][v]);
      }
    }
  const int64_t first = block * LINEAR_BLOCK + offset;
  if (first >= call->outputs) return;
  float sums[LINEAR_MOST_ROWS][LINEAR_BLOCK]; /* stored by a loop that is unrolled: `sum` stays in the registers */
  for (int r = 0; r < rows; r++)
    for (int v = 0; v < vectors; v++) _mm256_storeu_ps(sums[r] + 8 * v, sum[r][v]);
  for (int r = 0; r < rows; r++) linear_finish(call, row + r, first, sums[r], 8 * vectors);
}

/* A group's product, in code for its number of rows. The first of few groups prefetches: it waits for memory more than it
   computes. */
static void linear_group(const linear_call *call, int64_t row, int64_t block, int64_t rows) {
#define HALVES(count, asks) \
  for (int64_t offset = 0; offset < LINEAR_BLOCK; offset += 16) linear_product(call, row, block, offset, count, 2, asks)
#define ROWS(count)                                                                  \
  case count:                                                                        \
    if (count <= LINEAR_FEW_ROWS) linear_product(call, row, block, 0, count, 4, 0);  \
    else if (row == 0 && call->num_rows <= LINEAR_ASKING_ROWS) HALVES(count, 1);     \
    else HALVES(count, 0);                                                           \
    break;
  switch (rows) { ROWS(1) ROWS(2) ROWS(3) ROWS(4) ROWS(5) ROWS(6) }
#undef HALVES
#undef ROWS
}

#include "linear_strips.h"
#include "linear_blocks.h"

INLINE int linear_is_long(const linear_call *call) { return call->num_rows >= LINEAR_STRIP_ROWS; }

INLINE int64_t linear_room(const linear_call *call) {
  return linear_num_groups(call) * call->rows_per_group * call->inputs * (int64_t)sizeof(float);
}

/* Converts a group's rows to floats: few rows to [inputs, rows], many rows to [groups, inputs of a chunk, 6] per chunk, with
   zeros for missing rows. */
static void linear_prepare(const void *data, int64_t group) {
  const linear_call *call = data;
  const int is_long = linear_is_long(call);
  const int64_t row = is_long ? linear_first_row(group, call->num_rows) : group * call->rows_per_group;
  const int64_t beyond = is_long ? linear_first_row(group + 1, call->num_rows) : row + call->rows_per_group;
  const int64_t end = beyond < call->num_rows ? beyond : call->num_rows, chunk = linear_inputs_per_chunk(call->inputs);
  float *floats = call->prepared;
  if (!is_long) {
    floats += row * call->inputs;
    for (int64_t r = 0; r < end - row; r++)
      for (int64_t i = 0; i < call->inputs; i++) floats[i * (end - row) + r] = WIDEN(call->x[(row + r) * call->inputs + i]);
    return;
  }
  for (int64_t input = 0; input < call->inputs; input += chunk) {
    const int64_t left = call->inputs - input, inputs = left < chunk ? left : chunk;
    float *out = floats + (input * linear_num_groups(call) + group * inputs) * LINEAR_MOST_ROWS;
    for (int64_t i = input; i < input + inputs; i += 8, out += 8 * LINEAR_MOST_ROWS) {
      __m256 rows[LINEAR_MOST_ROWS];
      for (int r = 0; r < LINEAR_MOST_ROWS; r++)
        rows[r] = row + r < end ? (__m256)LOAD(call->x + (row + r) * call->inputs + i) : _mm256_setzero_ps();
      linear_transpose(rows, out);
    }
  }
}

static int64_t linear_num_items(const linear_call *call) {
  const int64_t num_strip_groups = (linear_num_groups(call) + LINEAR_TILES - 1) / LINEAR_TILES;
  return linear_is_long(call) ? num_strip_groups * call->num_blocks : call->items_per_group;
}

static void linear_any_item(const void *data, int64_t item) {
  if (linear_is_long(data)) linear_strip_item(data, item);
  else linear_item(data, item);
}
