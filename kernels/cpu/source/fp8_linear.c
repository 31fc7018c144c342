/* A linear layer whose weight is 8-bit floats with scales: see kernels/operations/fp8_linear.py.

   A row is summed in the same order whatever the number of rows: its outputs are the same alone and in a batch. */
#if defined(__AVX512BF16__) && IS_BFLOAT16

/* Outputs of a block; the most rows that meet a weight in the registers, and the most whose sums are kept at a time; inputs
   whose weights are widened at a time for more rows than that; the prefetch distance in bytes of the weight. */
enum { FP8_BLOCK = 32, FP8_MOST_ROWS = 14, FP8_KEPT_ROWS = 256, FP8_SLAB = 1024, FP8_AHEAD = 8192 };
enum { FP8_LEAST_ITEM = 64 << 10, FP8_LARGEST_ITEM = 1 << 20, FP8_ITEMS = 16 };

typedef struct {
  const uint16_t *x, *bias;
  const uint8_t *weight;
  uint16_t *out;
  int64_t num_rows, inputs, outputs, size, num_blocks, blocks_per_item; /* `size`: inputs of a scale */
  int is_gelu;
} fp8_call;

/* Widens float8_e4m3fn numbers, none of which is NaN, to bfloat16. */
INLINE __m512i fp8_widen(__m256i codes) {
  const __m512i small = _mm512_castsi128_si512(
      _mm_setr_epi16(0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60)); /* multiples of 2^-9 */
  const __m512i wide = _mm512_cvtepu8_epi16(codes), magnitude = _mm512_and_si512(wide, _mm512_set1_epi16(0x7f));
  const __m512i normal = _mm512_add_epi16(_mm512_slli_epi16(magnitude, 4), _mm512_set1_epi16(0x3c00));
  const __mmask32 is_small = _mm512_testn_epi16_mask(wide, _mm512_set1_epi16(0x78));
  const __m512i value = _mm512_mask_permutexvar_epi16(normal, is_small, magnitude, small);
  return _mm512_or_si512(value, _mm512_slli_epi16(_mm512_sub_epi16(wide, magnitude), 8));
}

INLINE int64_t fp8_chunk_bytes(int64_t size) { return FP8_BLOCK * ((int64_t)sizeof(float) + size); }

/* Adds the products of the inputs of a scale to a block's outputs `totals` [rows, 32]. */
INLINE void fp8_product(const uint16_t *x, int64_t inputs, const uint16_t *weight, const float *scales, int64_t size,
                        float *totals, const int rows) {
  __m512 sum[FP8_MOST_ROWS][2];
  for (int r = 0; r < rows; r++) sum[r][0] = sum[r][1] = _mm512_setzero_ps();
  for (int64_t i = 0; i < size; i += 2, weight += 2 * FP8_BLOCK) {
    const __m512i first = _mm512_loadu_si512(weight), second = _mm512_loadu_si512(weight + FP8_BLOCK);
    for (int r = 0; r < rows; r++) {
      int32_t both;
      memcpy(&both, x + r * inputs + i, sizeof both);
      const __m512bh pair = (__m512bh)_mm512_set1_epi32(both);
      sum[r][0] = _mm512_dpbf16_ps(sum[r][0], pair, (__m512bh)first);
      sum[r][1] = _mm512_dpbf16_ps(sum[r][1], pair, (__m512bh)second);
    }
  }
  for (int r = 0; r < rows; r++)
    for (int half = 0; half < 2; half++) {
      float *total = totals + r * FP8_BLOCK + 16 * half;
      _mm512_storeu_ps(total, _mm512_fmadd_ps(sum[r][half], _mm512_loadu_ps(scales + 16 * half), _mm512_loadu_ps(total)));
    }
}

static void fp8_rows(const fp8_call *call, int64_t row, int64_t rows, int64_t input, const uint16_t *weight,
                     const float *scales, float *totals) {
  const uint16_t *x = call->x + row * call->inputs + input;
#define ROWS(count) \
  case count: fp8_product(x, call->inputs, weight, scales, call->size, totals, count); break;
  switch (rows) {
    ROWS(1) ROWS(2) ROWS(3) ROWS(4) ROWS(5) ROWS(6) ROWS(7)
    ROWS(8) ROWS(9) ROWS(10) ROWS(11) ROWS(12) ROWS(13) ROWS(14)
  }
#undef ROWS
}

/* Computes rows [begin, end) of a block; with few rows the weight of one scale is widened at a time. */
static void fp8_block(const fp8_call *call, int64_t block, int64_t begin, int64_t end) {
  const int64_t size = call->size, num_chunks = call->inputs / size, slab = end - begin > FP8_MOST_ROWS ? FP8_SLAB / size : 1;
  const int64_t num_groups = (end - begin + FP8_MOST_ROWS - 1) / FP8_MOST_ROWS;
  const int64_t rows_per_group = (end - begin + num_groups - 1) / num_groups;
  const uint8_t *chunk = call->weight + block * num_chunks * fp8_chunk_bytes(size);
  uint16_t wide[FP8_SLAB * FP8_BLOCK] __attribute__((aligned(64)));
  float scales[FP8_SLAB] __attribute__((aligned(64))); /* 32 of each chunk of at least 32 inputs */
  float totals[FP8_KEPT_ROWS * FP8_BLOCK] __attribute__((aligned(64)));
  memset(totals, 0, (size_t)((end - begin) * FP8_BLOCK) * sizeof(float));
  for (int64_t first = 0; first < num_chunks; first += slab) {
    const int64_t count = num_chunks - first < slab ? num_chunks - first : slab;
    for (int64_t c = 0; c < count; c++, chunk += fp8_chunk_bytes(size)) {
      memcpy(scales + c * FP8_BLOCK, chunk, FP8_BLOCK * sizeof(float));
      const uint8_t *codes = chunk + FP8_BLOCK * sizeof(float);
      for (int64_t i = 0; i < size * FP8_BLOCK; i += 64) {
        __builtin_prefetch(codes + i + FP8_AHEAD, 0, 0);
        uint16_t *to = wide + c * size * FP8_BLOCK + i;
        _mm512_store_si512(to, fp8_widen(_mm256_loadu_si256((const void *)(codes + i))));
        _mm512_store_si512(to + 32, fp8_widen(_mm256_loadu_si256((const void *)(codes + i + 32))));
      }
    }
    for (int64_t row = begin; row < end; row += rows_per_group) {
      const int64_t rows = end - row < rows_per_group ? end - row : rows_per_group;
      for (int64_t c = 0; c < count; c++)
        fp8_rows(call, row, rows, (first + c) * size, wide + c * size * FP8_BLOCK, scales + c * FP8_BLOCK,
                 totals + (row - begin) * FP8_BLOCK);
    }
  }
  const linear_call same = {.bias = call->bias, .out = call->out, .outputs = call->outputs, .is_gelu = call->is_gelu};
  for (int64_t row = begin; row < end; row++) {
    const float *total = totals + (row - begin) * FP8_BLOCK;
    linear_finish(&same, row, block, _mm512_load_ps(total), _mm512_load_ps(total + 16));
  }
}

static void fp8_item(const void *data, int64_t item) {
  const fp8_call *call = data;
  const int64_t first = item * call->blocks_per_item, beyond = first + call->blocks_per_item;
  for (int64_t block = first; block < beyond && block < call->num_blocks; block++)
    for (int64_t row = 0; row < call->num_rows; row += FP8_KEPT_ROWS)
      fp8_block(call, block, row, row + FP8_KEPT_ROWS < call->num_rows ? row + FP8_KEPT_ROWS : call->num_rows);
}

/* x: [num_rows, inputs], weight: [ceil(outputs / 32), inputs / size, 32 scales and size / 2 * 32 * 2 codes], bias (or null):
   [outputs], out: [num_rows, outputs]; `size` is 32, 64 or 128. */
PUBLIC void NAME(fp8_linear)(const uint16_t *x, const uint8_t *weight, const uint16_t *bias, uint16_t *out, int64_t num_rows,
                             int64_t inputs, int64_t outputs, int64_t size, int64_t is_gelu) {
  const int64_t num_blocks = (outputs + FP8_BLOCK - 1) / FP8_BLOCK, block_bytes = inputs / size * fp8_chunk_bytes(size);
  int64_t item_bytes = num_blocks * block_bytes / FP8_ITEMS;
  if (item_bytes < FP8_LEAST_ITEM) item_bytes = FP8_LEAST_ITEM;
  if (item_bytes > FP8_LARGEST_ITEM) item_bytes = FP8_LARGEST_ITEM;
  const int64_t blocks_per_item = (item_bytes + block_bytes - 1) / block_bytes;
  const fp8_call call = {x, bias, weight, out, num_rows, inputs, outputs, size, num_blocks, blocks_per_item, is_gelu != 0};
  run_ordered_items(num_rows > FP8_MOST_ROWS ? BY_TURNS : IN_STRETCHES, (num_blocks + blocks_per_item - 1) / blocks_per_item,
                    inputs * outputs, fp8_item, &call);
}
#endif
