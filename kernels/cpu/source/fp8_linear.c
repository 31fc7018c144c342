/* A linear layer whose weight is 8-bit floats with scales: see kernels/operations/fp8_linear.py.

   A row is summed in the same order whatever the number of rows: its outputs are the same alone and in a batch. */
#if defined(__AVX512BF16__) && IS_BFLOAT16

/* Outputs of a block; the most rows that meet a weight in the registers, and the most whose sums are kept at a time; inputs
   whose weights are widened at a time for more rows than that; the prefetch distance in bytes of the weight; the most inputs of
   a scale. */
enum { FP8_BLOCK = 32, FP8_MOST_ROWS = 14, FP8_KEPT_ROWS = 256, FP8_SLAB = 1024, FP8_AHEAD = 16384, FP8_MOST_SIZE = 128 };
enum { FP8_LEAST_ITEM = 64 << 10, FP8_LARGEST_ITEM = 1 << 20, FP8_ITEMS = 16 };

typedef struct {
  const uint16_t *x, *bias;
  const uint8_t *weight;
  uint16_t *out;
  int64_t num_rows, inputs, outputs, size, num_blocks, blocks_per_item; /* `size`: inputs of a scale */
  int gelu;
} fp8_call;

/* Widens float8_e4m3fn numbers, none of which is NaN, to bfloat16; they are in the high halves of `high`, and in the low halves
   of `low`. The exponent is 120 higher. The smallest numbers, m * 2^-9 for m < 8, have no leading 1: those are in a table. */
INLINE __m512i fp8_widen(__m512i high, __m512i low) {
  const __m512i smallest = _mm512_castsi128_si512(
      _mm_setr_epi16(0, 0x3b00 - 0x10, 0x3b80 - 0x20, 0x3bc0 - 0x30, 0x3c00 - 0x40, 0x3c20 - 0x50, 0x3c40 - 0x60, 0x3c60 - 0x70));
  const __m512i bits = _mm512_and_si512(_mm512_srai_epi16(high, 4), _mm512_set1_epi16((int16_t)0x87f0));
  const __mmask32 is_small = _mm512_testn_epi16_mask(high, _mm512_set1_epi16(0x7800));
  return _mm512_add_epi16(bits, _mm512_mask_permutexvar_epi16(_mm512_set1_epi16(0x3c00), is_small, low, smallest));
}

/* Widens the codes of `size` inputs of 32 outputs. */
INLINE void fp8_widen_chunk(const uint8_t *codes, int64_t size, uint16_t *wide) {
  for (int64_t i = 0; i < size * FP8_BLOCK; i += 64) {
    __builtin_prefetch(codes + i + FP8_AHEAD, 0, 2);
    const __m512i some = _mm512_loadu_si512(codes + i);
    _mm512_store_si512(wide + i, fp8_widen(_mm512_slli_epi16(some, 8), some));
    _mm512_store_si512(wide + i + 32, fp8_widen(some, _mm512_srli_epi16(some, 8)));
  }
}

INLINE int64_t fp8_chunk_bytes(int64_t size) { return FP8_BLOCK * ((int64_t)sizeof(float) + size); }

/* Adds the products of the inputs of `chunks` scales to a block's outputs `totals` [rows, 32]. `stride`: between rows of x. */
INLINE void fp8_product(const uint16_t *x, int64_t stride, const uint16_t *weight, const float *scales, int64_t size,
                        float *totals, const int rows, const int chunks) {
  __m512 sum[FP8_MOST_ROWS][2];
  for (int r = 0; r < rows * chunks; r++) sum[r][0] = sum[r][1] = _mm512_setzero_ps();
  for (int64_t i = 0; i < size; i += 2)
    for (int c = 0; c < chunks; c++) {
      const uint16_t *mine = weight + (c * size + i) * FP8_BLOCK;
      const __m512bh first = (__m512bh)_mm512_load_si512(mine), second = (__m512bh)_mm512_load_si512(mine + FP8_BLOCK);
      for (int r = 0; r < rows; r++) {
        int32_t both;
        memcpy(&both, x + r * stride + c * size + i, sizeof both);
        __m512 *const mine = sum[c * rows + r];
        mine[0] = _mm512_dpbf16_ps(mine[0], (__m512bh)_mm512_set1_epi32(both), first);
        mine[1] = _mm512_dpbf16_ps(mine[1], (__m512bh)_mm512_set1_epi32(both), second);
      }
    }
  for (int r = 0; r < rows; r++)
    for (int half = 0; half < 2; half++) {
      float *total = totals + r * FP8_BLOCK + 16 * half;
      __m512 result = _mm512_load_ps(total);
      for (int c = 0; c < chunks; c++)
        result = _mm512_fmadd_ps(sum[c * rows + r][half], _mm512_load_ps(scales + c * FP8_BLOCK + 16 * half), result);
      _mm512_store_ps(total, result);
    }
}

/* Adds the products of `count` scales. A few rows meet several scales at a time, whose sums do not wait for each other. More
   rows are copied first: in place, their lines may be in the same sets of the cache. */
static void fp8_rows(const uint16_t *x, int64_t rows, int64_t inputs, const uint16_t *weight, const float *scales, int64_t size,
                     int64_t count, float *totals) {
  uint16_t near[FP8_MOST_ROWS * FP8_MOST_SIZE] __attribute__((aligned(64)));
  for (int64_t c = 0; c < count; c++, x += size, weight += size * FP8_BLOCK, scales += FP8_BLOCK) {
    for (int64_t r = 0; rows > 3 && r < rows; r++) memcpy(near + r * size, x + r * inputs, (size_t)size * sizeof *x);
#define FEW(number) \
  case number: \
    if (c + 4 <= count) { \
      fp8_product(x, inputs, weight, scales, size, totals, number, 4); \
      c += 3, x += 3 * size, weight += 3 * size * FP8_BLOCK, scales += 3 * FP8_BLOCK; \
    } else { \
      fp8_product(x, inputs, weight, scales, size, totals, number, 1); \
    } \
    break;
#define ROWS(number) \
  case number: fp8_product(near, size, weight, scales, size, totals, number, 1); break;
    switch (rows) {
      FEW(1) FEW(2) FEW(3) ROWS(4) ROWS(5) ROWS(6) ROWS(7) ROWS(8) ROWS(9) ROWS(10) ROWS(11) ROWS(12) ROWS(13) ROWS(14)
    }
#undef FEW
#undef ROWS
  }
}

/* Computes rows [begin, end) of a block; with few rows, few weights are widened at a time, and stay in the nearest cache. */
static void fp8_block(const fp8_call *call, int64_t block, int64_t begin, int64_t end) {
  const int64_t size = call->size, num_chunks = call->inputs / size, slab = end - begin > FP8_MOST_ROWS ? FP8_SLAB / size : 4;
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
      fp8_widen_chunk(chunk + FP8_BLOCK * sizeof(float), size, wide + c * size * FP8_BLOCK);
    }
    for (int64_t row = begin; row < end; row += rows_per_group) {
      const int64_t rows = end - row < rows_per_group ? end - row : rows_per_group;
      fp8_rows(call->x + row * call->inputs + first * size, rows, call->inputs, wide, scales, size, count,
               totals + (row - begin) * FP8_BLOCK);
    }
  }
  const linear_call same = {.bias = call->bias, .out = call->out, .outputs = call->outputs, .gelu = call->gelu};
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

/* weight: [ceil(outputs / 32), inputs / size, 32 scales and size * 32 codes]; `size` is 32, 64 or 128. */
PUBLIC int NAME(fp8_linear)(const NAME(packed_linear_arguments) *of) {
  const int64_t num_blocks = (of->outputs + FP8_BLOCK - 1) / FP8_BLOCK;
  const int64_t block_bytes = of->inputs / of->size * fp8_chunk_bytes(of->size);
  int64_t item_bytes = num_blocks * block_bytes / FP8_ITEMS;
  if (item_bytes < FP8_LEAST_ITEM) item_bytes = FP8_LEAST_ITEM;
  if (item_bytes > FP8_LARGEST_ITEM) item_bytes = FP8_LARGEST_ITEM;
  const int64_t blocks_per_item = (item_bytes + block_bytes - 1) / block_bytes;
  const fp8_call call = {.x = of->x, .bias = of->bias, .weight = of->weight, .out = of->out, .num_rows = of->num_rows,
                         .inputs = of->inputs, .outputs = of->outputs, .size = of->size, .num_blocks = num_blocks,
                         .blocks_per_item = blocks_per_item, .gelu = (int)of->gelu};
  run_ordered_items(of->num_rows > FP8_MOST_ROWS ? BY_TURNS : IN_STRETCHES, (num_blocks + blocks_per_item - 1) / blocks_per_item,
                    of->inputs * of->outputs, fp8_item, &call);
  return 0;
}
#endif
