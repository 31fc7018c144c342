/* A linear layer whose weight is in block forms: see kernels/operations/block_linear.py.

   A row's outputs are the same bits alone and in any batch. */

/* Sets `values` to the values of a group of `size`, 0 beyond `left`. */
INLINE void NAME(quant_values)(const element *x, int64_t left, float *values, const int size) {
  if (left >= size) {
    SIMD for (int i = 0; i < size; i++) values[i] = WIDEN(x[i]);
  } else {
    for (int i = 0; i < size; i++) values[i] = i < left ? WIDEN(x[i]) : 0.0f;
  }
}

/* Writes a row's outputs of a block, at most 32, from their sums. */
static void NAME(quant_finish)(element *out, const element *bias, int num_outputs, int gelu, float *sums) {
#if IS_BFLOAT16 && defined(__AVX512BF16__)
  const linear_call same = {.bias = bias, .out = out, .outputs = num_outputs, .gelu = gelu};
  linear_finish(&same, 0, 0, _mm512_loadu_ps(sums), _mm512_loadu_ps(sums + 16));
#else
  if (bias) {
    for (int i = 0; i < num_outputs; i++) sums[i] += WIDEN(bias[i]);
  }
  if (gelu == TANH_GELU) {
    SIMD for (int i = 0; i < QUANT_BLOCK; i++) sums[i] = gelu_tanh(sums[i]);
  } else if (gelu == EXACT_GELU) {
    SIMD for (int i = 0; i < QUANT_BLOCK; i++) sums[i] = gelu_exact(sums[i]);
  }
  if (num_outputs == QUANT_BLOCK) {
    SIMD for (int i = 0; i < QUANT_BLOCK; i++) out[i] = NARROW(sums[i]);
  } else {
    for (int i = 0; i < num_outputs; i++) out[i] = NARROW(sums[i]);
  }
#endif
}

#include "group_scales.c"
#include "token_scales.c"

static void NAME(block_code_tile)(const void *data, int64_t tile) {
  const block_call *call = data;
  const int64_t row = tile * call->rows_per_tile, rows = block_rows_left(call, row);
  for (int64_t r = 0; r < rows; r++) {
    int8_t *codes = call->codes + row * block_width(call) + 4 * r;
    if (call->has_token_scales)
      NAME(quant_code_row)(call, row + r, codes, rows);
    else
      NAME(block_code_row)(call, (const element *)call->x + (row + r) * call->inputs, codes,
                           call->factors + row * call->num_groups + r, rows);
  }
}

/* An item is some blocks of 32 outputs of some tiles of rows. */
static void NAME(block_item)(const void *data, int64_t item) {
  const block_call *call = data;
  const int64_t begin = item / call->items_per_rows * call->rows_per_item, left = call->num_rows - begin;
  const int64_t end = begin + (left < call->rows_per_item ? left : call->rows_per_item);
  const int64_t first = item % call->items_per_rows * call->blocks_per_item, beyond = first + call->blocks_per_item;
  const block_part *part = call->parts;
  for (int64_t block = first; block < beyond && block < call->num_blocks; block++) {
    while (block - part->first_block >= part->num_blocks) part++;
    if (call->has_token_scales)
      NAME(quant_block)(call, block, begin, end);
    else
      NAME(block_block)(call, part, block - part->first_block, begin, end);
  }
}

/* Returns 0, or -1 without memory. */
PUBLIC int NAME(block_linear)(const NAME(block_linear_arguments) *of) {
  const int64_t num_rows = of->num_rows, inputs = of->inputs;
  if (num_rows == 0) return 0;
  block_call call = {.x = of->x, .bias = of->bias, .means = of->means, .out = of->out, .num_rows = num_rows, .inputs = inputs,
                     .gelu = (int)of->gelu};
  block_plan(&call, of->weight, of->segments, of->num_segments);
  void *room = kept_room((size_t)block_place(&call, 0));
  if (!room) return -1;
  block_place(&call, room);
  run_items(block_num_tiles(&call), 2 * num_rows * inputs, NAME(block_code_tile), &call);
  block_find_shifts(&call);
  run_ordered_items(num_rows <= call.rows_per_tile ? IN_STRETCHES : BY_TURNS, block_num_items(&call), inputs * call.outputs,
                    NAME(block_item), &call);
  return 0;
}
