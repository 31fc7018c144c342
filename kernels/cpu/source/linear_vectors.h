/* A packed linear layer on vectors: a group of rows and a block's 32 outputs meet in the registers. */

#ifndef SLUICE_LINEAR_VECTORS
#define SLUICE_LINEAR_VECTORS
#include "pairs.h"

/* The most rows per group: each takes two vectors of sums, the operands take three. The prefetch distance in bytes of weights
   that one group reads, past the outer caches: they are not read again before the next step, and evict nothing there. The
   fewest rows of several groups whose first two prefetch the next block. The prefetch distance in bytes of inputs, in full
   groups only: inputs are in pages of 4 KB, at whose ends the processor stops reading ahead. */
enum { LINEAR_STRIP_ROWS = INT32_MAX /* there are no strips */, LINEAR_MOST_ROWS = 14, LINEAR_WEIGHT_AHEAD = 8192, LINEAR_ROWS_AHEAD = 3, LINEAR_FULL_ROWS = 13, LINEAR_X_AHEAD = 4096 };
#endif

/* Adds the products of 16 outputs' weights of a step with a row's inputs, which are in each lane. */
INLINE __m512 linear_multiply(__m512 sum, __m512i inputs, __m512i weights) {
#if IS_BFLOAT16
  return _mm512_dpbf16_ps(sum, (__m512bh)inputs, (__m512bh)weights);
#else
  return _mm512_fmadd_ps((__m512)inputs, (__m512)weights, sum);
#endif
}

/* `x`: steps of inputs, with a group's rows side by side. `next`: the memory that one of several groups prefetches, `pace`
   elements per step; null for a single group. */
INLINE void linear_product(const linear_call *call, int64_t row, int64_t block, const element *next, int64_t pace,
                           const int rows) {
  const element *weight = call->weight + block * call->inputs * LINEAR_BLOCK;
  const element *x = (call->prepared ? (const element *)call->prepared : call->x) + row * call->inputs;
  __m512 sum[LINEAR_MOST_ROWS][2];
  for (int r = 0; r < rows; r++) sum[r][0] = sum[r][1] = _mm512_setzero_ps();
  for (int64_t step = 0; step < call->inputs / LINEAR_PAIR; step++, x += LINEAR_PAIR * rows, weight += LINEAR_STEP) {
    if (!next) {
      __builtin_prefetch((const char *)weight + LINEAR_WEIGHT_AHEAD, 0, 0);
      __builtin_prefetch((const char *)weight + LINEAR_WEIGHT_AHEAD + 64, 0, 0);
    } else if (rows >= LINEAR_ROWS_AHEAD) {
      __builtin_prefetch(next, 0, 2);
      __builtin_prefetch(next + LINEAR_STEP / 2, 0, 2);
      next += pace;
    }
    if (rows >= LINEAR_FULL_ROWS) __builtin_prefetch((const char *)x + LINEAR_X_AHEAD, 0, 2);
    const __m512i first = _mm512_loadu_si512(weight), second = _mm512_loadu_si512(weight + LINEAR_STEP / 2);
    for (int r = 0; r < rows; r++) {
      int32_t both;
      memcpy(&both, x + LINEAR_PAIR * r, sizeof both);
      const __m512i inputs = _mm512_set1_epi32(both);
      sum[r][0] = linear_multiply(sum[r][0], inputs, first);
      sum[r][1] = linear_multiply(sum[r][1], inputs, second);
    }
  }
  for (int r = 0; r < rows; r++) linear_finish(call, row + r, block, sum[r][0], sum[r][1]);
}

/* Returns the block that this thread will probably compute next, by turns, or the number of blocks. */
INLINE int64_t linear_next_block(const linear_call *call, int64_t block) {
  const int64_t next = block + 1 + ((block + 1) % call->blocks_per_item ? 0 : call->blocks_between);
  return next < call->num_blocks ? next : call->num_blocks;
}

/* A group's product, in code for its number of rows. The first two of several groups prefetch half of the next block each:
   memory is too slow for all of it in the time of one group. */
static void linear_group(const linear_call *call, int64_t row, int64_t block, int64_t rows) {
  const int64_t block_size = call->inputs * LINEAR_BLOCK, after = linear_next_block(call, block);
  const int asks = after < call->num_blocks && row <= call->rows_per_group;
  const int64_t pace = asks ? LINEAR_STEP / 2 : 0;
  const element *next = call->weight + (asks ? after : block) * block_size + (asks && row ? block_size / 2 : 0);
  if (call->num_rows <= call->rows_per_group) next = 0;
#define ROWS(count) \
  case count: linear_product(call, row, block, next, pace, count); break;
  switch (rows) {
    ROWS(1) ROWS(2) ROWS(3) ROWS(4) ROWS(5) ROWS(6) ROWS(7)
    ROWS(8) ROWS(9) ROWS(10) ROWS(11) ROWS(12) ROWS(13) ROWS(14)
  }
#undef ROWS
}

#include "linear_blocks.h"

INLINE int64_t linear_room(const linear_call *call) {
  return call->num_rows > 1 || call->is_rounded ? call->num_rows * call->inputs * (int64_t)sizeof(element) : 0;
}

/* Puts the steps of a group's rows side by side. */
static void linear_prepare(const void *data, int64_t group) {
  const linear_call *call = data;
  const int64_t row = group * call->rows_per_group, left = call->num_rows - row, steps = call->inputs / LINEAR_PAIR;
  const int64_t rows = left < call->rows_per_group ? left : call->rows_per_group;
  const __mmask16 lanes = (__mmask16)((1u << rows) - 1);
  for (int64_t step = 0; step < steps; step += 16) {
    const int64_t at = row * call->inputs + LINEAR_PAIR * step;
    __m512i mine[16];
    for (int64_t r = 0; r < 16; r++)
      mine[r] = r < rows ? linear_pairs(call, at + r * call->inputs) : _mm512_setzero_si512();
    transpose_pairs(mine);
    uint32_t *out = (uint32_t *)call->prepared + row * steps + step * rows;
    for (int i = 0; i < 16; i++) _mm512_mask_storeu_epi32(out + i * rows, lanes, mine[i]);
  }
}

static int64_t linear_num_items(const linear_call *call) { return call->items_per_group; }
static void linear_any_item(const void *data, int64_t item) { linear_item(data, item); }
