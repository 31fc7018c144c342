/* Products of block_linear.c for a form with scales per token: activations become codes, and products are exact sums of
   integers. */

#ifndef SLUICE_TOKEN_SCALES
#define SLUICE_TOKEN_SCALES
/* The fewest rows of a single tile that prefetches its own memory, and the distance: the processor is too busy to read ahead. */
enum { QUANT_BUSY_ROWS = QUANT_LANES == 8 ? 3 : 2, QUANT_AHEAD = 8 << 10 };

/* The fewest rows of a call whose codes are shifted, which needs the sums of a block's weight codes. */
enum { QUANT_SHIFTED_ROWS = 32 };

/* The prefetch distance of a row in bytes: it is in pages of 4 KB, at whose ends the processor stops reading ahead. */
enum { QUANT_X_AHEAD = 4096 };

INLINE quant_outlier *quant_row_outliers(const block_call *call, int64_t row) {
  return call->outliers + row * call->most_outliers;
}

/* Sets `sums` [rows, 32] to the products of a block and a tile, in code for its number of rows. */
static void quant_any_tile(const block_call *call, const uint8_t *weight, int64_t row, void *sums, const uint8_t *later,
                           int lines, int passes) {
  const quant_operands operands = {weight, later, call->codes + row * block_width(call), block_width(call) / QUANT_GROUP, lines,
                                   passes};
#define ROWS(count) \
  case count: quant_tile(&operands, sums, count); break;
  switch (block_rows_left(call, row)) {
    ROWS(1) ROWS(2)
#if QUANT_ROWS > 2
    ROWS(3) ROWS(4)
#endif
#if QUANT_ROWS > 4
    ROWS(5) ROWS(6) ROWS(7) ROWS(8)
#endif
#if QUANT_ROWS > 8
    ROWS(9) ROWS(10) ROWS(11) ROWS(12) ROWS(13) ROWS(14)
#endif
  }
#undef ROWS
}

/* Sets `totals` to the sums of a block's codes, which rows with a shift need. */
INLINE void quant_add_up(const block_call *call, const uint8_t *weight, quant_ints *totals) {
  quant_codes sums[4][QUANT_VECTORS]; /* in chains that do not wait for each other */
  for (int i = 0; i < 4; i++)
    for (int v = 0; v < QUANT_VECTORS; v++) sums[i][v] = quant_none();
  for (int64_t input = 0; input < block_width(call); input += 16)
    for (int i = 0; i < 4; i++, weight += 4 * QUANT_BLOCK)
      for (int v = 0; v < QUANT_VECTORS; v++)
        sums[i][v] = quant_four(sums[i][v], quant_load(weight + 4 * QUANT_LANES * v), 0x01010101);
  for (int v = 0; v < QUANT_VECTORS; v++) {
    totals[v] = (quant_ints)sums[0][v];
    for (int i = 1; i < 4; i++) totals[v] += (quant_ints)sums[i][v];
  }
}

/* Adds the corrections of a row's codes to its `sums` of a block. */
INLINE void quant_add_rests(const block_call *call, const uint8_t *weight, const quant_ints *totals, int64_t row, void *sums) {
  const quant_rests rests = call->rests[row];
  if (!(rests.num_near | rests.num_far | rests.shift)) return;
  const quant_outlier *outlier = quant_row_outliers(call, row), *end = outlier + rests.num_near;
  quant_ints all[QUANT_VECTORS];
  for (int v = 0; v < QUANT_VECTORS; v++) all[v] = ((quant_ints *)sums)[v] + rests.shift * totals[v];
  for (; outlier < end; outlier++) {
    const uint8_t *from = weight + outlier->place;
    for (int v = 0; v < QUANT_VECTORS; v++)
      all[v] = (quant_ints)quant_four((quant_codes)all[v], quant_load(from + 4 * QUANT_LANES * v), outlier->rest);
  }
  end = quant_row_outliers(call, row + 1);
  for (outlier = end - rests.num_far; outlier < end; outlier++) {
    const quant_ints *from = (const void *)(weight + outlier->place / 4 * 4);
    for (int v = 0; v < QUANT_VECTORS; v++) all[v] += (from[v] >> 8 * (outlier->place % 4) & 255) * outlier->rest;
  }
  for (int v = 0; v < QUANT_VECTORS; v++) ((quant_ints *)sums)[v] = all[v];
}

/* Turns sums of codes into a row's outputs of a block, before the bias. */
INLINE void quant_scale_row(const block_call *call, const quant_floats *scales, int64_t row, void *sums) {
  const quant_factor factor = call->token_factors[row];
  for (int v = 0; v < QUANT_VECTORS; v++) {
    const quant_ints total = ((quant_ints *)sums)[v] + factor.first;
    ((quant_floats *)sums)[v] = __builtin_convertvector(total, quant_floats) * (scales[v] * factor.scale);
  }
}

/* Returns magnitudes. */
INLINE lanes quant_sizes(lanes x) {
  typedef uint32_t lane_bits __attribute__((vector_size(32)));
  return (lanes)((lane_bits)x & 0x7fffffffu);
}
#endif

/* Returns the sum of magnitudes, added in the same order for all instruction sets. With AVX-512 VNNI it sets `range`, unless
   null, to the smallest and the largest number, or 0. */
INLINE float NAME(quant_magnitudes)(const element *x, int64_t inputs, quant_range *range) {
  float sums[16] __attribute__((aligned(64))) = {0}, total = 0.0f;
#if defined(__AVX512VNNI__)
  __m512 all = _mm512_setzero_ps(), least = all, largest = all;
  for (int64_t i = 0; i < inputs; i += 16) {
    __builtin_prefetch((const char *)(x + i) + QUANT_X_AHEAD);
    const __m512 some = linear_load(x + i, lanes_of(inputs - i));
    all = _mm512_add_ps(all, _mm512_abs_ps(some));
    if (range) least = _mm512_min_ps(least, some), largest = _mm512_max_ps(largest, some);
  }
  _mm512_store_ps(sums, all);
  if (range) *range = (quant_range){_mm512_reduce_min_ps(least), _mm512_reduce_max_ps(largest)};
#else
  (void)range;
  lanes near = {0}, far = {0};
  int64_t i = 0;
  for (; i + 16 <= inputs; i += 16) {
    near += quant_sizes(LOAD(x + i));
    far += quant_sizes(LOAD(x + i + LANES));
  }
  *(lanes *)sums = near, *(lanes *)(sums + LANES) = far;
  for (int j = 0; i < inputs; i++, j++) sums[j] += fabsf(WIDEN(x[i]));
#endif
  for (int j = 0; j < 16; j++) total += sums[j];
  return total;
}

/* Makes a row's codes. If a number is not finite, all outputs are NaN. */
INLINE void NAME(quant_code_row)(const block_call *call, int64_t row, int8_t *codes, int64_t rows) {
  const element *x = (const element *)call->x + row * call->inputs;
  quant_range range = {0};
  quant_range *const wanted = call->num_rows >= QUANT_SHIFTED_ROWS ? &range : 0;
  const float mean =
      call->means ? call->means[row] : NAME(quant_magnitudes)(x, call->inputs, wanted) / (float)call->inputs;
  const int is_finite = mean < INFINITY, is_large = is_finite && mean > QUANT_LEAST_MAGNITUDE;
  const float rate = is_large ? QUANT_STEPS / mean : 0.0f;
  const int64_t inputs = is_large ? call->inputs : 0;
  quant_rests rests = {0, 0, 0};
#if defined(__AVX512VNNI__)
  rests.shift = quant_shift(range, rate);
  __m512i sums = _mm512_setzero_si512();
#else
  int32_t sum = 0;
#endif
  for (int64_t begin = 0; begin < block_width(call); begin += QUANT_GROUP) {
    int8_t together[QUANT_GROUP];
    const int64_t left = inputs - begin;
#if defined(__AVX512VNNI__)
    __m512 values[QUANT_GROUP / 16];
    for (int v = 0; v < QUANT_GROUP / 16; v++)
      values[v] = linear_load(x + begin + 16 * v, left >= QUANT_GROUP ? 0xffff : lanes_of(left - 16 * v));
    quant_split(values, rate, (int32_t)begin, together, &sums, quant_row_outliers(call, row), call->most_outliers, &rests);
#else
    float values[QUANT_GROUP] __attribute__((aligned(64)));
    NAME(quant_values)(x + begin, left, values, QUANT_GROUP);
    quant_split(values, rate, (int32_t)begin, together, &sum, quant_row_outliers(call, row), call->most_outliers, &rests);
#endif
    quant_lay(together, codes + begin * rows, 4 * rows, QUANT_GROUP);
  }
#if defined(__AVX512VNNI__)
  const int32_t sum = _mm512_reduce_add_epi32(sums);
#endif
  call->rests[row] = rests;
  call->token_factors[row] = (quant_factor){-128 * sum, is_large ? mean / QUANT_STEPS : is_finite ? 0.0f : NAN};
}

/* Writes a row's outputs of a block. */
INLINE void NAME(quant_put)(const block_call *call, int64_t row, int64_t block, float *sums) {
  const int64_t first = block * QUANT_BLOCK, left = call->outputs - first;
  NAME(quant_finish)((element *)call->out + row * call->outputs + first, call->bias ? (const element *)call->bias + first : 0,
                     left < QUANT_BLOCK ? (int)left : QUANT_BLOCK, call->gelu, sums);
}

/* Computes rows [begin, end) of a block. Each pass of its tiles prefetches a part of the next block, which follows in memory. A
   single tile prefetches, in its first pass, what it needs itself a little later. So memory is read during computation. */
static void NAME(quant_block)(const block_call *call, int64_t block, int64_t begin, int64_t end) {
  const int64_t block_bytes = call->parts->unit_bytes;
  const int64_t num_tiles = (end - begin + call->rows_per_tile - 1) / call->rows_per_tile;
  const int64_t passes = num_tiles > 1 ? quant_passes(call->rows_per_tile) : 1, num_passes = num_tiles * passes;
  const int64_t num_lines = QUANT_GROUP_BYTES / 64, share = (num_lines + num_passes - 1) / num_passes;
  const uint8_t *first = call->parts->weight + block * block_bytes, *weight = first + QUANT_SCALE_BYTES;
  quant_floats scales[QUANT_VECTORS];
  for (int v = 0; v < QUANT_VECTORS; v++) scales[v] = quant_scales(first + 2 * QUANT_LANES * v);
  const uint8_t *later = weight + (num_tiles > 1 ? block_bytes : QUANT_AHEAD);
  const int is_busy = end - begin >= QUANT_BUSY_ROWS;
  int64_t left = num_tiles > 1 || is_busy ? num_lines : 0;
  quant_ints totals[QUANT_VECTORS] = {{0}};
  if (call->is_shifted) quant_add_up(call, weight, totals);
#if defined(__AMX_INT8__)
  if (call->has_tiles) {
    int32_t sums[BLOCK_MOST_ROWS * QUANT_BLOCK] __attribute__((aligned(64)));
    const int64_t width = block_width(call);
    quant_tiles(call->codes + begin * width, width, weight, width / QUANT_GROUP, end - begin, sums);
    for (int64_t row = begin; row < end; row++) {
      int32_t *mine = sums + (row - begin) * QUANT_BLOCK;
      quant_add_rests(call, weight, totals, row, mine);
      quant_scale_row(call, scales, row, mine);
      NAME(quant_put)(call, row, block, (float *)(void *)mine);
    }
    return;
  }
#endif
  for (int64_t row = begin; row < end; row += call->rows_per_tile) {
    const int64_t lines = left < share ? left : share, rows = block_rows_left(call, row);
    float sums[QUANT_ROWS * QUANT_BLOCK] __attribute__((aligned(64)));
    for (int64_t r = 0; r < rows; r++) __builtin_prefetch(quant_row_outliers(call, row + r));
    quant_any_tile(call, weight, row, sums, later, (int)lines, (int)passes);
    for (int64_t r = 0; r < rows; r++) quant_add_rests(call, weight, totals, row + r, sums + r * QUANT_BLOCK);
    for (int64_t r = 0; r < rows; r++) {
      quant_scale_row(call, scales, row + r, sums + r * QUANT_BLOCK);
      NAME(quant_put)(call, row + r, block, sums + r * QUANT_BLOCK);
    }
    left -= left < passes * lines ? left : passes * lines;
    later += 64 * passes * lines;
  }
}

static void NAME(quant_sum_row)(const void *data, int64_t row) {
  const NAME(sum_magnitudes_arguments) *of = data;
  of->sums[row] = NAME(quant_magnitudes)(of->x + row * of->inputs, of->inputs, 0);
}

ITEM_OPERATION(sum_magnitudes, sum_magnitudes_arguments, of->num_rows, of->inputs, quant_sum_row)
