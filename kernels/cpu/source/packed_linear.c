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
#define linear_rows_per_group NAME(linear_rows_per_group)
#define linear_widen_group NAME(linear_widen_group)
#define linear_widen_block NAME(linear_widen_block)
#define linear_strip_item NAME(linear_strip_item)
#define linear_plan NAME(linear_plan)
#define linear_room NAME(linear_room)
#define linear_place NAME(linear_place)
#define linear_num_groups NAME(linear_num_groups)
#define linear_prepare NAME(linear_prepare)
#define linear_num_items NAME(linear_num_items)
#define linear_any_item NAME(linear_any_item)
#define linear_is_long NAME(linear_is_long)
#define linear_run NAME(linear_run)
#define linear_pairs NAME(linear_pairs)

#define LINEAR_PAIR (IS_BFLOAT16 ? 2 : 1)         /* inputs stored together: a step */
#define LINEAR_STEP (LINEAR_PAIR * LINEAR_BLOCK) /* weights of a block's step */
#endif

typedef struct {
  const element *x, *weight, *bias;
  element *out;
  int64_t num_rows, inputs, outputs, rows_per_group, num_blocks, blocks_per_item, items_per_group;
  int gelu, is_rounded; /* is_rounded: x, bias and out are floats, and x is rounded for the products with bfloat16 */
  item_order order;
  int64_t blocks_between; /* between an item and the one that its thread will probably take next, by turns */
  void *prepared; /* x as `linear_prepare` writes it and products read it, or null */
} linear_call;

#if defined(__AVX512BF16__)
#if IS_BFLOAT16
/* The GELU of this kind of 16 numbers, to the precision of bfloat16. */
INLINE __m512 linear_gelu(__m512 x, int kind) {
  if (kind == EXACT_GELU) return gelu_exact_vector(x);
  const __m512 rate = _mm512_set1_ps(-2.0f * 0.79788456080286536f * LOG2_E), limit = _mm512_set1_ps(126.0f);
  const __m512 slope = _mm512_fmadd_ps(_mm512_mul_ps(x, x), _mm512_mul_ps(rate, _mm512_set1_ps(0.044715f)), rate);
  __m512 power = _mm512_min_ps(limit, _mm512_mul_ps(slope, x)); /* NaN stays NaN */
  power = _mm512_max_ps(_mm512_sub_ps(_mm512_setzero_ps(), limit), power);
  return _mm512_mul_ps(x, _mm512_rcp14_ps(_mm512_add_ps(_mm512_set1_ps(1.0f), rough_powers_of_2(power))));
}

INLINE __m512 linear_load(const element *x, __mmask16 lanes) { return load_vector(x, lanes); }
INLINE void linear_put(element *out, __mmask16 lanes, __m512 x) { store_vector(out, lanes, x); }
#else
INLINE __m512 linear_gelu(__m512 x, int kind) {
  float all[16] __attribute__((aligned(64)));
  _mm512_store_ps(all, x);
  if (kind == EXACT_GELU) SIMD for (int i = 0; i < 16; i++) all[i] = gelu_exact(all[i]);
  else SIMD for (int i = 0; i < 16; i++) all[i] = gelu_tanh(all[i]);
  return _mm512_load_ps(all);
}

INLINE __m512 linear_load(const element *x, __mmask16 lanes) { return _mm512_maskz_loadu_ps(lanes, x); }
INLINE void linear_put(element *out, __mmask16 lanes, __m512 x) { _mm512_mask_storeu_ps(out, lanes, x); }
#endif

/* Writes 16 of a row's outputs, fewer at the end of the last block. */
INLINE void linear_narrow(const linear_call *call, __m512 values, int64_t row, int64_t first) {
  const __mmask16 lanes = lanes_of(call->outputs - first);
  const int64_t at = row * call->outputs + first;
  if (call->bias) {
    const float *floats = (const float *)(const void *)call->bias;
    values = _mm512_add_ps(values, call->is_rounded ? load_floats(floats + first, lanes) : linear_load(call->bias + first, lanes));
  }
  if (call->gelu) values = linear_gelu(values, call->gelu);
  if (call->is_rounded) _mm512_mask_storeu_ps((float *)(void *)call->out + at, lanes, values);
  else linear_put(call->out + at, lanes, values);
}

/* Writes a row's 32 outputs of a block from their sums. */
INLINE void linear_finish(const linear_call *call, int64_t row, int64_t block, __m512 first_half, __m512 second_half) {
  linear_narrow(call, first_half, row, block * LINEAR_BLOCK);
  linear_narrow(call, second_half, row, block * LINEAR_BLOCK + 16);
}

/* 16 pairs of x from its `at`-th element on. */
INLINE __m512i linear_pairs(const linear_call *call, int64_t at) {
  const float *floats = (const float *)(const void *)call->x + at;
  if (!call->is_rounded) return _mm512_loadu_si512(call->x + at);
  return (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(floats + 16), _mm512_loadu_ps(floats));
}
#endif

static int64_t linear_num_groups(const linear_call *call) {
  return (call->num_rows + call->rows_per_group - 1) / call->rows_per_group;
}

#if defined(__AMX_BF16__) && IS_BFLOAT16
#include "linear_tiles.h"
#elif defined(__AVX512BF16__)
#include "linear_vectors.h"
#else
#include "linear_floats.h"
#endif

/* Sets how the call is cut into items. */
static void linear_plan(linear_call *call) {
  const int64_t block_bytes = call->inputs * LINEAR_BLOCK * (int64_t)sizeof(element);
  call->num_blocks = (call->outputs + LINEAR_BLOCK - 1) / LINEAR_BLOCK;
  call->rows_per_group = linear_rows_per_group(call->num_rows, call->inputs);
  int64_t item_bytes = call->num_blocks * block_bytes / LINEAR_ITEMS;
  if (item_bytes < LINEAR_LEAST_ITEM) item_bytes = LINEAR_LEAST_ITEM;
  if (item_bytes > LINEAR_LARGEST_ITEM) item_bytes = LINEAR_LARGEST_ITEM;
  call->blocks_per_item = item_bytes / block_bytes > 1 ? item_bytes / block_bytes : 1;
  call->items_per_group = (call->num_blocks + call->blocks_per_item - 1) / call->blocks_per_item;
}

/* Returns the bytes of memory that a call needs, and uses `room` for them. */
static int64_t linear_place(linear_call *call, void *room) {
  const int64_t num_bytes = linear_room(call);
  call->prepared = num_bytes ? room : 0;
  return num_bytes;
}

/* weight: [ceil(outputs / 32), inputs / 2, 32, 2], of float32 [ceil(outputs / 32), inputs, 32, 1]; inputs is a multiple of 32. */
static int linear_run(const NAME(packed_linear_arguments) *of, int is_rounded) {
  const int64_t num_rows = of->num_rows, inputs = of->inputs;
  if (num_rows == 0) return 0;
  linear_call call = {.x = of->x, .weight = of->weight, .bias = of->bias, .out = of->out, .num_rows = num_rows,
                      .inputs = inputs, .outputs = of->outputs, .gelu = (int)of->gelu, .is_rounded = is_rounded};
  linear_plan(&call);
  /* With few rows a thread reads a long stretch of weights; with many rows threads work on neighbouring blocks together. */
  call.order = num_rows <= call.rows_per_group ? IN_STRETCHES : BY_TURNS;
  call.blocks_between = (sluice_num_threads() - 1) * call.blocks_per_item;
  const int64_t room = linear_place(&call, 0);
  if (room) {
    void *memory = kept_room((size_t)room);
    if (!memory) return -1;
    linear_place(&call, memory);
    run_items(linear_num_groups(&call), num_rows * inputs / 4, linear_prepare, &call);
  }
  run_ordered_items(call.order, linear_num_items(&call), inputs * of->outputs, linear_any_item, &call);
  return 0;
}

PUBLIC int NAME(packed_linear)(const NAME(packed_linear_arguments) *of) { return linear_run(of, 0); }
#if defined(__AVX512BF16__) && IS_BFLOAT16
PUBLIC int NAME(rounded_linear)(const NAME(packed_linear_arguments) *of) { return linear_run(of, 1); }
#endif
#endif
