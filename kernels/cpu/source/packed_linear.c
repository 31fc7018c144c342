/* A linear layer whose weight is packed: see kernels/operations/packed_linear.py.

   A row is summed in the same order whatever the number of rows: its outputs are the same alone and in a batch. */
#if defined(__AVX2__)

#ifndef SLUICE_LINEAR
#define SLUICE_LINEAR
/* The fewest and the most bytes of an item's weight, and the fewest items; outputs per block. */
enum { LINEAR_LEAST_ITEM = 128 << 10, LINEAR_LARGEST_ITEM = 1 << 20, LINEAR_ITEMS = 16, LINEAR_BLOCK = 32 };

#define linear_call NAME(linear_call)
#define linear_gelu NAME(linear_gelu)
#define linear_load NAME(linear_load)
#define linear_put NAME(linear_put)
#define linear_narrow NAME(linear_narrow)
#define linear_finish NAME(linear_finish)
#define linear_store NAME(linear_store)
#define linear_multiply NAME(linear_multiply)
#define linear_weights NAME(linear_weights)
#define linear_product NAME(linear_product)
#define linear_group NAME(linear_group)
#define linear_next_block NAME(linear_next_block)
#define linear_item NAME(linear_item)
#define linear_run NAME(linear_run)
#define linear_rows_per_group NAME(linear_rows_per_group)
#define linear_widen_group NAME(linear_widen_group)
#define linear_widen_block NAME(linear_widen_block)
#define linear_strip_item NAME(linear_strip_item)
#define linear_packing NAME(linear_packing)
#define linear_pack_group NAME(linear_pack_group)

#define LINEAR_PAIR (IS_BFLOAT16 ? 2 : 1)         /* inputs stored together: a step */
#define LINEAR_STEP (LINEAR_PAIR * LINEAR_BLOCK) /* weights of a block's step */
#endif

typedef struct {
  const element *x, *weight, *bias;
  element *out;
  int64_t num_rows, inputs, outputs, rows_per_group, num_blocks, blocks_per_item, items_per_group;
  int is_gelu;
  item_order order;
  int64_t blocks_between; /* between an item and the one that its thread will probably take next, by turns */
  float *floats; /* only in linear_floats.h: x as floats, `inputs_per_chunk` inputs at a time */
  int64_t inputs_per_chunk;
} linear_call;

#if defined(__AVX512BF16__)
#if IS_BFLOAT16
/* gelu_tanh of 16 numbers, to the precision of bfloat16. */
INLINE __m512 linear_gelu(__m512 x) {
  const __m512 rate = _mm512_set1_ps(-2.0f * 0.79788456080286536f * LOG2_E), limit = _mm512_set1_ps(126.0f);
  const __m512 slope = _mm512_fmadd_ps(_mm512_mul_ps(x, x), _mm512_mul_ps(rate, _mm512_set1_ps(0.044715f)), rate);
  __m512 power = _mm512_min_ps(limit, _mm512_mul_ps(slope, x)); /* NaN stays NaN */
  power = _mm512_max_ps(_mm512_sub_ps(_mm512_setzero_ps(), limit), power);
  return _mm512_mul_ps(x, _mm512_rcp14_ps(_mm512_add_ps(_mm512_set1_ps(1.0f), rough_powers_of_2(power))));
}

INLINE __m512 linear_load(const element *x, __mmask16 lanes) { return load_vector(x, lanes); }
INLINE void linear_put(element *out, __mmask16 lanes, __m512 x) { store_vector(out, lanes, x); }
#else
INLINE __m512 linear_gelu(__m512 x) {
  float all[16] __attribute__((aligned(64)));
  _mm512_store_ps(all, x);
  SIMD for (int i = 0; i < 16; i++) all[i] = gelu_tanh(all[i]);
  return _mm512_load_ps(all);
}

INLINE __m512 linear_load(const element *x, __mmask16 lanes) { return _mm512_maskz_loadu_ps(lanes, x); }
INLINE void linear_put(element *out, __mmask16 lanes, __m512 x) { _mm512_mask_storeu_ps(out, lanes, x); }
#endif

/* Writes 16 outputs, fewer at the end of the last block. */
INLINE void linear_narrow(const linear_call *call, __m512 values, const element *bias, element *out, int64_t left) {
  const __mmask16 lanes = lanes_of(left);
  if (bias) values = _mm512_add_ps(values, linear_load(bias, lanes));
  if (call->is_gelu) values = linear_gelu(values);
  linear_put(out, lanes, values);
}

/* Writes a row's 32 outputs of a block from their sums. */
INLINE void linear_finish(const linear_call *call, int64_t row, int64_t block, __m512 first_half, __m512 second_half) {
  const int64_t first = block * LINEAR_BLOCK, left = call->outputs - first;
  const element *bias = call->bias ? call->bias + first : 0;
  element *out = call->out + row * call->outputs + first;
  linear_narrow(call, first_half, bias, out, left);
  linear_narrow(call, second_half, bias ? bias + 16 : 0, out + 16, left - 16);
}
#endif

#if defined(__AMX_BF16__) && IS_BFLOAT16
#include "linear_tiles.h"
#elif defined(__AVX512BF16__)
#include "linear_vectors.h"
#else
#include "linear_floats.h"
#endif

/* x: [num_rows, inputs], weight: [ceil(outputs / 32), inputs / 2, 32, 2], of float32
   [ceil(outputs / 32), inputs, 32, 1], bias (or null): [outputs],
   out: [num_rows, outputs]; inputs is a multiple of 32. Returns 0, or -1 without memory. */
PUBLIC int NAME(packed_linear)(const element *x, const element *weight, const element *bias, element *out,
                               int64_t num_rows, int64_t inputs, int64_t outputs, int64_t is_gelu) {
  if (num_rows == 0) return 0;
  const int64_t rows_per_group = linear_rows_per_group(num_rows, inputs);
  const int64_t num_blocks = (outputs + LINEAR_BLOCK - 1) / LINEAR_BLOCK;
  const int64_t block_bytes = inputs * LINEAR_BLOCK * (int64_t)sizeof(element);
  int64_t item_bytes = num_blocks * block_bytes / LINEAR_ITEMS;
  if (item_bytes < LINEAR_LEAST_ITEM) item_bytes = LINEAR_LEAST_ITEM;
  if (item_bytes > LINEAR_LARGEST_ITEM) item_bytes = LINEAR_LARGEST_ITEM;
  int64_t blocks_per_item = item_bytes / block_bytes;
  if (blocks_per_item < 1) blocks_per_item = 1;
  const int64_t items_per_group = (num_blocks + blocks_per_item - 1) / blocks_per_item;
  /* With few rows a thread reads a long stretch of weights; with many rows threads work on neighbouring blocks together. */
  const item_order order = num_rows <= rows_per_group ? IN_STRETCHES : BY_TURNS;
  const int64_t blocks_between = (sluice_num_threads() - 1) * blocks_per_item;
  linear_call call = {x, weight, bias, out, num_rows, inputs, outputs, rows_per_group, num_blocks, blocks_per_item,
                      items_per_group, is_gelu != 0, order, blocks_between, 0, 0};
  return linear_run(&call);
}
#endif
