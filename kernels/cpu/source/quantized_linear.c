/* A linear layer of int8 or int4 weights: kernels/quantized_linear.py says what it does and how the weight lies.

   Activations become codes of 8 bits, a scale for each group of inputs; products are exact sums of whole numbers, and the
   groups are added up in their order. So a row's value is the same bits alone and in any batch. */

#ifndef SLUICE_QUANTIZED_LINEAR
#define SLUICE_QUANTIZED_LINEAR
/* Bytes of an item's weight at least, items of a layer, most rows of an item, inputs whose weight
   stays near while rows go by, and rows whose codes are made at once. */
enum { QUANT_LEAST_ITEM = 16 << 10, QUANT_ITEMS = 32, QUANT_MOST_ROWS = 256, QUANT_CHUNK = 512, QUANT_ROWS_AT_ONCE = 8 };

typedef struct {
  const void *x, *bias;
  void *out;
  const uint8_t *weight;
  int8_t *codes;         /* [num_rows, num_groups, group] */
  quant_factor *factors; /* [num_rows, num_groups] */
  int64_t num_rows, inputs, outputs, num_groups, num_blocks, blocks_per_item, items_per_rows;
  int bits, is_gelu;
} quant_call;

static void quant_rows(quant_weight weight, const quant_call *call, int64_t row, int64_t end, int64_t group,
                       int64_t num_groups, float *sums, const int bits, const int is_unpacked) {
  const int64_t stride = call->num_groups * quant_group(bits);
#define QUANT_CASE(rows)                                                                                              \
  quant_product(weight, call->codes + row * stride + group * quant_group(bits), stride,                               \
                call->factors + row * call->num_groups + group, call->num_groups, num_groups, sums, rows, bits, is_unpacked)
  for (; row + QUANT_ROWS <= end; row += QUANT_ROWS, sums += QUANT_ROWS * QUANT_BLOCK) QUANT_CASE(QUANT_ROWS);
#if QUANT_ROWS > 3
  if (end - row == 3) QUANT_CASE(3);
#endif
#if QUANT_ROWS > 2
  if (end - row == 2) QUANT_CASE(2);
#endif
  if (end - row == 1) QUANT_CASE(1);
#undef QUANT_CASE
}

/* Sets `sums` [rows, 32] to a block's outputs for rows [row, end), before the bias. */
static void quant_block(const quant_call *call, int64_t block, int64_t row, int64_t end, float *sums) {
  const int64_t group_bytes = quant_group_bytes(call->bits);
  const uint8_t *base = call->weight + block * call->num_groups * group_bytes;
  quant_weight weight = {base + 2 * QUANT_BLOCK, base, group_bytes, group_bytes};
  uint8_t unpacked[QUANT_CHUNK * QUANT_BLOCK] __attribute__((aligned(64)));
  memset(sums, 0, sizeof(float) * (size_t)((end - row) * QUANT_BLOCK));
  /* Rows of one turn need no more than to see each code once. */
  const int64_t chunk = end - row <= QUANT_ROWS ? call->num_groups : QUANT_CHUNK / quant_group(call->bits);
  for (int64_t group = 0; group < call->num_groups; group += chunk) {
    const int64_t left = call->num_groups - group, num_groups = left < chunk ? left : chunk;
    if (call->bits == 8) {
      quant_rows(weight, call, row, end, group, num_groups, sums, 8, 0);
    } else if (end - row <= 2 * QUANT_ROWS) {
      quant_rows(weight, call, row, end, group, num_groups, sums, 4, 0);
    } else {
      quant_unpack(weight, num_groups, unpacked);
      const quant_weight wide = {unpacked, weight.scales, quant_group(4) * QUANT_BLOCK, group_bytes};
      quant_rows(wide, call, row, end, group, num_groups, sums, 4, 1);
    }
    weight.codes += num_groups * group_bytes;
    weight.scales += num_groups * group_bytes;
  }
}
#endif

/* Makes codes of a group of at most `size` activations, 0 beyond `left`: 127 stands for the largest magnitude. A group
   with what is no finite number has the scale NaN, so that all outputs of its row are NaN. */
INLINE quant_factor NAME(quant_code)(const element *x, int64_t left, int8_t *codes, const int size) {
  const float least = 1e-30f, to_integer = 12582912.0f; /* 1.5 * 2^23: see power_of_2 */
  float values[QUANT_MOST_INPUTS], largest = 0.0f, poison = 0.0f;
  int32_t sum = 0;
  if (left >= size) {
    SIMD for (int i = 0; i < size; i++) values[i] = WIDEN(x[i]);
  } else {
    for (int i = 0; i < size; i++) values[i] = i < left ? WIDEN(x[i]) : 0.0f;
  }
  _Pragma("omp simd reduction(max : largest) reduction(+ : poison)") for (int i = 0; i < size; i++) {
    const float magnitude = fabsf(values[i]);
    largest = magnitude > largest ? magnitude : largest;
    poison += values[i] * 0.0f;
  }
  const int is_finite = poison == 0.0f;
  const float factor = largest > least ? 127.0f / largest : 0.0f;
  SIMD_SUM(sum) for (int i = 0; i < size; i++) {
    const float code = (is_finite ? values[i] : 0.0f) * factor + to_integer;
    const int8_t narrow = (int8_t)(uint8_t)(bits_of(code) & 0xffu);
    codes[i] = narrow;
    sum += narrow;
  }
  return (quant_factor){is_finite ? largest > least ? largest / 127.0f : 0.0f : NAN, sum};
}

static void NAME(quant_code_rows)(const void *data, int64_t item) {
  const quant_call *call = data;
  const int size = quant_group(call->bits);
  const int64_t first = item * QUANT_ROWS_AT_ONCE, last = first + QUANT_ROWS_AT_ONCE;
  for (int64_t row = first; row < last && row < call->num_rows; row++)
    for (int64_t group = 0; group < call->num_groups; group++) {
      const int64_t begin = group * size, index = row * call->num_groups + group;
      const element *x = (const element *)call->x + row * call->inputs + begin;
      int8_t *codes = call->codes + index * size;
      call->factors[index] = size == 32 ? NAME(quant_code)(x, call->inputs - begin, codes, 32)
                                        : NAME(quant_code)(x, call->inputs - begin, codes, 64);
    }
}

static void NAME(quant_finish)(const quant_call *call, int64_t row, int64_t block, float *sums) {
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
}

/* An item is some blocks of 32 outputs of a group of rows. */
static void NAME(quant_item)(const void *data, int64_t item) {
  const quant_call *call = data;
  const int64_t begin = item / call->items_per_rows * QUANT_MOST_ROWS;
  const int64_t end = begin + QUANT_MOST_ROWS < call->num_rows ? begin + QUANT_MOST_ROWS : call->num_rows;
  const int64_t first = item % call->items_per_rows * call->blocks_per_item;
  float sums[QUANT_MOST_ROWS * QUANT_BLOCK] __attribute__((aligned(64)));
  for (int64_t block = first; block < first + call->blocks_per_item && block < call->num_blocks; block++) {
    quant_block(call, block, begin, end, sums);
    for (int64_t row = begin; row < end; row++) NAME(quant_finish)(call, row, block, sums + (row - begin) * QUANT_BLOCK);
  }
}

/* x: [num_rows, inputs], weight: [blocks, groups, group's bytes], bias (or null): [outputs], out: [num_rows, outputs],
   scratch: num_rows * groups * (group + 8) bytes, aligned to 8. */
PUBLIC void NAME(quantized_linear)(const element *x, const uint8_t *weight, const element *bias, element *out,
                                   void *scratch, int64_t num_rows, int64_t inputs, int64_t outputs, int64_t bits,
                                   int64_t is_gelu) {
  const int64_t num_groups = (inputs + quant_group((int)bits) - 1) / quant_group((int)bits);
  const int64_t num_blocks = (outputs + QUANT_BLOCK - 1) / QUANT_BLOCK;
  const int64_t block_bytes = num_groups * quant_group_bytes((int)bits);
  int64_t item_bytes = num_blocks * block_bytes / QUANT_ITEMS;
  if (item_bytes < QUANT_LEAST_ITEM) item_bytes = QUANT_LEAST_ITEM;
  const int64_t blocks_per_item = (item_bytes + block_bytes - 1) / block_bytes;
  const int64_t items_per_rows = (num_blocks + blocks_per_item - 1) / blocks_per_item;
  quant_factor *factors = scratch;
  quant_call call = {x, bias, out, weight, (int8_t *)(factors + num_rows * num_groups), factors, num_rows, inputs, outputs,
                     num_groups, num_blocks, blocks_per_item, items_per_rows, (int)bits, is_gelu != 0};
  run_items((num_rows + QUANT_ROWS_AT_ONCE - 1) / QUANT_ROWS_AT_ONCE, num_rows * inputs, NAME(quant_code_rows), &call);
  run_items((num_rows + QUANT_MOST_ROWS - 1) / QUANT_MOST_ROWS * items_per_rows, inputs * outputs, NAME(quant_item),
            &call);
}
