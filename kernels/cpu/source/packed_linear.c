/* A linear layer on tiles: kernels/packed_linear.py says what it does and how the weight lies.

   A row's value is summed in the same order whatever the number of rows: one alone and one of a batch are equal. */
#if IS_BFLOAT16 && defined(__AMX_BF16__)

/* Bytes: of a step's weight, of the rows that stay in a core's cache, of an item's weight at least and at most, and
   how far ahead of its use the weight is asked for. */
enum { LINEAR_STEP = 2048, LINEAR_ROWS = 768 << 10, LINEAR_AHEAD = 8192 };
enum { LINEAR_LEAST_ITEM = 128 << 10, LINEAR_LARGEST_ITEM = 1 << 20, LINEAR_ITEMS = 16 };
/* Outputs of a block, rows of a group at most, and inputs whose weight stays near while a group's rows go by. */
enum { LINEAR_BLOCK = 32, LINEAR_MOST_ROWS = 512, LINEAR_CHUNK = 256 };

typedef struct {
  const element *x, *weight, *bias;
  element *out;
  int64_t num_rows, inputs, outputs, rows_per_group, num_blocks, blocks_per_item, items_per_group;
  int is_gelu;
} linear_call;

/* Tiles 0 to 3 are 2 by 2 sums, 4 and 5 the rows, 6 and 7 the weight. `rows` is at most 32. */
static void use_linear_tiles(int rows) {
  tile_settings mine = {{0}};
  const int first = rows < 16 ? rows : 16, second = rows - first;
  const int tile_rows[8] = {first, first, second, second, first, second, 16, 16};
  mine.bytes[0] = 1;
  for (int tile = 0; tile < 8; tile++)
    if (tile_rows[tile]) {
      mine.bytes[16 + 2 * tile] = 64;
      mine.bytes[48 + tile] = (uint8_t)tile_rows[tile];
    }
  _tile_loadconfig(&mine);
}

/* Adds what inputs [input, end) give to 32 outputs of at most 32 rows. */
INLINE void linear_sums(const linear_call *call, int64_t row, int64_t block, int64_t input, const int64_t end,
                        float *sums, const int has_second, const int is_streamed) {
  const int stride = (int)(call->inputs * 2);
  const char *weight = (const char *)call->weight + block * call->inputs * 64 + input * 64;
  const element *first = call->x + row * call->inputs, *second = first + 16 * call->inputs;
  if (input == 0) {
    _tile_zero(0);
    _tile_zero(1);
    if (has_second) {
      _tile_zero(2);
      _tile_zero(3);
    }
  } else {
    _tile_loadd(0, sums, 4 * LINEAR_BLOCK);
    _tile_loadd(1, sums + 16, 4 * LINEAR_BLOCK);
    if (has_second) {
      _tile_loadd(2, sums + 16 * LINEAR_BLOCK, 4 * LINEAR_BLOCK);
      _tile_loadd(3, sums + 16 * LINEAR_BLOCK + 16, 4 * LINEAR_BLOCK);
    }
  }
  for (; input < end; input += 32, weight += LINEAR_STEP) {
    if (is_streamed)
      for (int line = 0; line < LINEAR_STEP; line += 64)
        __builtin_prefetch(weight + LINEAR_AHEAD + line, 0, 3);
    _tile_loadd(4, first + input, stride);
    _tile_loadd(6, weight, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, weight + LINEAR_STEP / 2, 64);
    _tile_dpbf16ps(1, 4, 7);
    if (has_second) {
      _tile_loadd(5, second + input, stride);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, sums, 4 * LINEAR_BLOCK);
  _tile_stored(1, sums + 16, 4 * LINEAR_BLOCK);
  if (has_second) {
    _tile_stored(2, sums + 16 * LINEAR_BLOCK, 4 * LINEAR_BLOCK);
    _tile_stored(3, sums + 16 * LINEAR_BLOCK + 16, 4 * LINEAR_BLOCK);
  }
}

/* gelu_tanh of 16 numbers, as near as bfloat16 can tell. */
INLINE __m512 linear_gelu(__m512 x) {
  const __m512 one = _mm512_set1_ps(1.0f), rate = _mm512_set1_ps(-2.0f * 0.79788456080286536f * LOG2_E);
  const __m512 cubed = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_mul_ps(x, x), _mm512_set1_ps(0.044715f)), x, x);
  const __m512 power = _mm512_min_ps(_mm512_set1_ps(126.0f), _mm512_mul_ps(cubed, rate)); /* NaN stays NaN */
  return _mm512_mul_ps(x, _mm512_rcp14_ps(_mm512_add_ps(one, powers_of_2(power))));
}

/* 16 outputs: the last block's end where fewer are left. */
INLINE void linear_narrow(const linear_call *call, const float *sums, const element *bias, element *out, int64_t left) {
  const __mmask16 lanes = left >= 16 ? 0xffff : left > 0 ? (__mmask16)((1u << left) - 1) : 0;
  __m512 values = _mm512_load_ps(sums);
  if (bias) {
    const __m512i wide = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, bias)), 16);
    values = _mm512_add_ps(values, _mm512_castsi512_ps(wide));
  }
  if (call->is_gelu) values = linear_gelu(values);
  _mm256_mask_storeu_epi16(out, lanes, (__m256i)_mm512_cvtneps_pbh(values));
}

static void linear_finish(const linear_call *call, int64_t row, int64_t num_rows, int64_t block, const float *sums) {
  const int64_t first = block * LINEAR_BLOCK, left = call->outputs - first;
  const element *bias = call->bias ? call->bias + first : 0;
  for (int64_t r = 0; r < num_rows; r++, sums += LINEAR_BLOCK) {
    element *out = call->out + (row + r) * call->outputs + first;
    linear_narrow(call, sums, bias, out, left);
    linear_narrow(call, sums + 16, bias ? bias + 16 : 0, out + 16, left - 16);
  }
}

/* An item is some blocks of 32 outputs of a group of rows, which stay in a core's cache from block to block. */
static void linear_item(const void *data, int64_t item) {
  const linear_call *call = data;
  const int64_t begin = item / call->items_per_group * call->rows_per_group;
  const int64_t end = begin + call->rows_per_group < call->num_rows ? begin + call->rows_per_group : call->num_rows;
  const int64_t first_block = item % call->items_per_group * call->blocks_per_item;
  float sums[LINEAR_MOST_ROWS * LINEAR_BLOCK] __attribute__((aligned(64)));
  tile_settings before;
  int64_t configured = 0;
  const int64_t chunk = end - begin > 32 ? LINEAR_CHUNK : call->inputs;
  _tile_storeconfig(&before);
  for (int64_t block = first_block; block < first_block + call->blocks_per_item && block < call->num_blocks; block++)
    for (int64_t input = 0; input < call->inputs; input += chunk) {
      const int64_t beyond = input + chunk < call->inputs ? input + chunk : call->inputs;
      for (int64_t row = begin; row < end; row += 32) {
        const int64_t num_rows = end - row < 32 ? end - row : 32;
        float *mine = sums + (row - begin) * LINEAR_BLOCK;
        if (num_rows != configured) use_linear_tiles((int)num_rows);
        configured = num_rows;
        if (num_rows > 16 && row > begin)
          linear_sums(call, row, block, input, beyond, mine, 1, 0);
        else if (num_rows > 16)
          linear_sums(call, row, block, input, beyond, mine, 1, 1);
        else if (row > begin)
          linear_sums(call, row, block, input, beyond, mine, 0, 0);
        else
          linear_sums(call, row, block, input, beyond, mine, 0, 1);
        if (beyond == call->inputs) linear_finish(call, row, num_rows, block, mine);
      }
    }
  leave_tiles(&before);
}

/* x: [num_rows, inputs], weight: [ceil(outputs / 32), inputs / 32, 2, 16, 16, 2], bias (or null): [outputs],
   out: [num_rows, outputs]; inputs is a multiple of 32. */
PUBLIC void NAME(packed_linear)(const element *x, const element *weight, const element *bias, element *out,
                                int64_t num_rows, int64_t inputs, int64_t outputs, int64_t is_gelu) {
  int64_t rows_per_group = LINEAR_ROWS / (inputs * 2) / 32 * 32;
  if (rows_per_group < 32) rows_per_group = 32;
  if (rows_per_group > LINEAR_MOST_ROWS) rows_per_group = LINEAR_MOST_ROWS;
  const int64_t num_groups = (num_rows + rows_per_group - 1) / rows_per_group;
  const int64_t num_blocks = (outputs + LINEAR_BLOCK - 1) / LINEAR_BLOCK;
  int64_t item_bytes = num_blocks * inputs * 64 / LINEAR_ITEMS;
  if (item_bytes < LINEAR_LEAST_ITEM) item_bytes = LINEAR_LEAST_ITEM;
  if (item_bytes > LINEAR_LARGEST_ITEM) item_bytes = LINEAR_LARGEST_ITEM;
  int64_t blocks_per_item = item_bytes / (inputs * 64);
  if (blocks_per_item < 1) blocks_per_item = 1;
  const int64_t items_per_group = (num_blocks + blocks_per_item - 1) / blocks_per_item;
  linear_call call = {x, weight, bias, out, num_rows, inputs, outputs, rows_per_group, num_blocks, blocks_per_item,
                      items_per_group, is_gelu != 0};
  run_items(num_groups * items_per_group, inputs * outputs, linear_item, &call);
}
#endif
