/* A linear layer of int8 or int4 weights: kernels/quantized_linear.py says what it does and how the weight lies.

   Activations become codes of 8 bits, a scale for each group of inputs; products are exact sums of whole numbers, and the
   groups are added up in their order. So a row's value is the same bits alone and in any batch. */

#ifndef SLUICE_QUANTIZED_LINEAR
#define SLUICE_QUANTIZED_LINEAR
/* Bytes of an item's weight at least and at most, items at least, and most rows of an item. */
enum { QUANT_LEAST_ITEM = 32 << 10, QUANT_LARGEST_ITEM = 1 << 20, QUANT_ITEMS = 16, QUANT_MOST_ROWS = 256 };

/* Rows of a tile alone from which it computes more than it waits for memory, and how far ahead it asks for that then. */
enum { QUANT_BUSY_ROWS = 6, QUANT_AHEAD = 8 << 10 };

/* Rows lie in tiles, which are as equal as may be. */
typedef struct {
  const void *x, *bias;
  void *out;
  const uint8_t *weight;
  int8_t *codes;         /* [tiles, num_groups, inputs of a group / 4, rows of a tile, 4] */
  quant_factor *factors; /* [tiles, num_groups, rows of a tile] */
  int64_t num_rows, rows_per_tile, rows_per_item, inputs, outputs, num_groups, num_blocks, blocks_per_item, items_per_rows;
  int bits, is_gelu;
} quant_call;

INLINE int64_t quant_rows_left(const quant_call *call, int64_t row) {
  const int64_t left = call->num_rows - row;
  return left < call->rows_per_tile ? left : call->rows_per_tile;
}

/* Sets `sums` [rows, 32] to a block's outputs for a tile, before the bias, in code for just as many rows. */
static void quant_any_tile(const quant_call *call, const uint8_t *weight, int64_t row, float *sums, const uint8_t *later,
                           int lines) {
  const int64_t rows = quant_rows_left(call, row), num_groups = call->num_groups;
  const int8_t *codes = call->codes + row * num_groups * quant_group(call->bits);
  const quant_factor *factors = call->factors + row * num_groups;
  memset(sums, 0, sizeof(float) * (size_t)(rows * QUANT_BLOCK));
#define ROWS(count)                                                                 \
  case count:                                                                       \
    if (call->bits == 4)                                                            \
      quant_tile(weight, codes, factors, num_groups, sums, later, lines, count, 4); \
    else                                                                            \
      quant_tile(weight, codes, factors, num_groups, sums, later, lines, count, 8); \
    break;
  switch (rows) {
    ROWS(1) ROWS(2)
#if QUANT_ROWS > 2
    ROWS(3) ROWS(4) ROWS(5) ROWS(6) ROWS(7) ROWS(8)
#endif
  }
#undef ROWS
}
#endif

/* Returns the bits of the largest magnitude. */
INLINE uint32_t NAME(quant_largest)(const element *x, const int64_t count) {
  uint32_t largest = 0;
  _Pragma("omp simd reduction(max : largest)") for (int64_t i = 0; i < count; i++) {
    const uint32_t magnitude = bits_of(WIDEN(x[i])) & 0x7fffffffu;
    largest = magnitude > largest ? magnitude : largest;
  }
  return largest;
}

/* Makes codes of a row's group of activations, 0 beyond `left`: four neighbours lie together, the next four `stride` bytes
   on. */
INLINE quant_factor NAME(quant_code)(const element *x, int64_t left, uint32_t largest, int8_t *codes, int64_t stride,
                                     const int bits) {
  const int size = quant_group(bits);
  float values[QUANT_MOST_INPUTS] __attribute__((aligned(64)));
  int8_t together[QUANT_MOST_INPUTS];
  if (left >= size) {
    SIMD for (int i = 0; i < size; i++) values[i] = WIDEN(x[i]);
  } else {
    for (int i = 0; i < size; i++) values[i] = i < left ? WIDEN(x[i]) : 0.0f;
  }
  const quant_factor factor = quant_round(values, largest, together, bits);
  for (int i = 0; i < size; i += 4) memcpy(codes + i / 4 * stride, together + i, 4);
  return factor;
}

/* Makes a row's codes, one of `rows` of a tile. Each group's largest magnitude is found before any code is made: a group
   need not wait for the one before it then. */
INLINE void NAME(quant_code_row)(const quant_call *call, const element *x, int8_t *codes, quant_factor *factors,
                                 int64_t rows, const int bits) {
  const int size = quant_group(bits);
  for (int64_t group = 0; group < call->num_groups; group++) {
    const int64_t begin = group * size, left = call->inputs - begin;
    const uint32_t largest = left >= size ? NAME(quant_largest)(x + begin, size) : NAME(quant_largest)(x + begin, left);
    factors[group * rows].first = (int32_t)largest;
  }
  for (int64_t group = 0; group < call->num_groups; group++) {
    const int64_t begin = group * size;
    const uint32_t largest = (uint32_t)factors[group * rows].first;
    factors[group * rows] =
        NAME(quant_code)(x + begin, call->inputs - begin, largest, codes + begin * rows, 4 * rows, bits);
  }
}

static void NAME(quant_code_tile)(const void *data, int64_t tile) {
  const quant_call *call = data;
  const int64_t row = tile * call->rows_per_tile, rows = quant_rows_left(call, row);
  for (int64_t r = 0; r < rows; r++) {
    const element *x = (const element *)call->x + (row + r) * call->inputs;
    int8_t *codes = call->codes + row * call->num_groups * quant_group(call->bits) + 4 * r;
    quant_factor *factors = call->factors + row * call->num_groups + r;
    if (call->bits == 4)
      NAME(quant_code_row)(call, x, codes, factors, rows, 4);
    else
      NAME(quant_code_row)(call, x, codes, factors, rows, 8);
  }
}

/* A row's 32 outputs of a block, as their sums are. */
static void NAME(quant_finish)(const quant_call *call, int64_t row, int64_t block, float *sums) {
#if IS_BFLOAT16 && defined(__AVX512BF16__)
  const linear_call same = {.bias = call->bias, .out = call->out, .outputs = call->outputs, .is_gelu = call->is_gelu};
  linear_finish(&same, row, block, _mm512_loadu_ps(sums), _mm512_loadu_ps(sums + 16));
#else
  const int64_t first = block * QUANT_BLOCK, left = call->outputs - first;
  const int num_outputs = left < QUANT_BLOCK ? (int)left : QUANT_BLOCK;
  if (call->bias) {
    const element *bias = (const element *)call->bias + first;
    for (int i = 0; i < num_outputs; i++) sums[i] += WIDEN(bias[i]);
  }
  if (call->is_gelu) {
    SIMD for (int i = 0; i < QUANT_BLOCK; i++) sums[i] = gelu_tanh(sums[i]);
  }
  element *out = (element *)call->out + row * call->outputs + first;
  if (num_outputs == QUANT_BLOCK) {
    SIMD for (int i = 0; i < QUANT_BLOCK; i++) out[i] = NARROW(sums[i]);
  } else {
    for (int i = 0; i < num_outputs; i++) out[i] = NARROW(sums[i]);
  }
#endif
}

/* Rows [begin, end) of a block. While its tiles go by, each asks for its part of the next block, which lies behind; a tile
   alone, for what it needs itself a little later: memory is read while there is something to compute. */
static void NAME(quant_block)(const quant_call *call, int64_t block, int64_t begin, int64_t end) {
  const int64_t block_bytes = call->num_groups * quant_group_bytes(call->bits);
  const int64_t num_tiles = (end - begin + call->rows_per_tile - 1) / call->rows_per_tile;
  const int64_t num_lines = quant_group_bytes(call->bits) / 64, share = (num_lines + num_tiles - 1) / num_tiles;
  const uint8_t *weight = call->weight + block * block_bytes;
  const uint8_t *later = weight + (num_tiles > 1 ? block_bytes : QUANT_AHEAD);
  int64_t left = num_tiles > 1 || end - begin >= QUANT_BUSY_ROWS ? num_lines : 0;
  for (int64_t row = begin; row < end; row += call->rows_per_tile) {
    const int64_t lines = left < share ? left : share, rows = quant_rows_left(call, row);
    float sums[QUANT_ROWS * QUANT_BLOCK] __attribute__((aligned(64)));
    quant_any_tile(call, weight, row, sums, later, (int)lines);
    for (int64_t r = 0; r < rows; r++) NAME(quant_finish)(call, row + r, block, sums + r * QUANT_BLOCK);
    left -= lines;
    later += 64 * lines;
  }
}

/* An item is some blocks of 32 outputs of some tiles of rows. */
static void NAME(quant_item)(const void *data, int64_t item) {
  const quant_call *call = data;
  const int64_t begin = item / call->items_per_rows * call->rows_per_item, left = call->num_rows - begin;
  const int64_t end = begin + (left < call->rows_per_item ? left : call->rows_per_item);
  const int64_t first = item % call->items_per_rows * call->blocks_per_item;
  for (int64_t block = first; block < first + call->blocks_per_item && block < call->num_blocks; block++)
    NAME(quant_block)(call, block, begin, end);
}

/* x: [num_rows, inputs], weight: [blocks, groups, group's bytes], bias (or null): [outputs], out: [num_rows, outputs],
   scratch: num_rows * groups * (group + 8) bytes, aligned to 8. */
PUBLIC void NAME(quantized_linear)(const element *x, const uint8_t *weight, const element *bias, element *out,
                                   void *scratch, int64_t num_rows, int64_t inputs, int64_t outputs, int64_t bits,
                                   int64_t is_gelu) {
  if (num_rows == 0) return;
  const int64_t num_groups = (inputs + quant_group((int)bits) - 1) / quant_group((int)bits);
  const int64_t num_blocks = (outputs + QUANT_BLOCK - 1) / QUANT_BLOCK;
  const int64_t block_bytes = num_groups * quant_group_bytes((int)bits);
  int64_t item_bytes = num_blocks * block_bytes / QUANT_ITEMS;
  if (item_bytes < QUANT_LEAST_ITEM) item_bytes = QUANT_LEAST_ITEM;
  if (item_bytes > QUANT_LARGEST_ITEM) item_bytes = QUANT_LARGEST_ITEM;
  const int64_t blocks_per_item = (item_bytes + block_bytes - 1) / block_bytes;
  const int64_t items_per_rows = (num_blocks + blocks_per_item - 1) / blocks_per_item;
  const int64_t least_tiles = (num_rows + QUANT_ROWS - 1) / QUANT_ROWS;
  const int64_t rows_per_tile = (num_rows + least_tiles - 1) / least_tiles;
  const int64_t rows_per_item = QUANT_MOST_ROWS / rows_per_tile * rows_per_tile;
  quant_factor *factors = scratch;
  quant_call call = {x, bias, out, weight, (int8_t *)(factors + num_rows * num_groups), factors, num_rows, rows_per_tile,
                     rows_per_item, inputs, outputs, num_groups, num_blocks, blocks_per_item, items_per_rows, (int)bits,
                     is_gelu != 0};
  run_items((num_rows + rows_per_tile - 1) / rows_per_tile, 2 * num_rows * inputs, NAME(quant_code_tile), &call);
  run_items((num_rows + rows_per_item - 1) / rows_per_item * items_per_rows, inputs * outputs, NAME(quant_item), &call);
}
