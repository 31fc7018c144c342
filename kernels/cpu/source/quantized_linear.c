/* A linear layer of int8 weights: see kernels/operations/quantized_linear.py.

   Activations become codes; products are exact sums of integers. So a row's outputs are the same bits alone and in any
   batch. */

#ifndef SLUICE_QUANTIZED_LINEAR
#define SLUICE_QUANTIZED_LINEAR
/* The fewest and the most bytes of an item's weight, the fewest items, and the most rows per item without its last tile's
   padding. */
enum { QUANT_LEAST_ITEM = 32 << 10, QUANT_LARGEST_ITEM = 1 << 20, QUANT_ITEMS = 16, QUANT_MOST_ROWS = 256 };

/* The fewest rows that are worth configuring tile registers. */
enum { QUANT_TILE_ROWS = 32 };

/* The fewest rows of a single tile that prefetches its own memory, and the distance: the processor is too busy to read ahead. */
enum { QUANT_BUSY_ROWS = QUANT_LANES == 8 ? 3 : 2, QUANT_AHEAD = 8 << 10 };

/* The fewest rows of a call whose codes are shifted, which needs the sums of a block's weight codes. */
enum { QUANT_SHIFTED_ROWS = 32 };

/* The prefetch distance of a row in bytes: it is in pages of 4 KB, at whose ends the processor stops reading ahead. */
enum { QUANT_X_AHEAD = 4096 };

/* Rows form tiles that are as equal as possible. */
typedef struct {
  const void *x, *bias;
  const float *means; /* [rows], of the whole tokens if x is a part of them, or null */
  void *out;
  const uint8_t *weight;
  int8_t *codes;         /* [tiles, num_groups, inputs of a group / 4, rows of a tile, 4] */
  quant_factor *factors; /* [rows] */
  quant_outlier *outliers;
  quant_rests *rests;
  int64_t num_rows, rows_per_tile, rows_per_item, inputs, outputs, num_groups, num_blocks, blocks_per_item, items_per_rows;
  int64_t most_outliers; /* per row */
  int gelu, has_tiles, is_shifted /* any row */;
} quant_call;

INLINE int64_t quant_rows_left(const quant_call *call, int64_t row) {
  const int64_t left = call->num_rows - row;
  return left < call->rows_per_tile ? left : call->rows_per_tile;
}

INLINE int64_t quant_num_tiles(const quant_call *call) {
  return (call->num_rows + call->rows_per_tile - 1) / call->rows_per_tile;
}

INLINE int64_t quant_num_items(const quant_call *call) {
  return (call->num_rows + call->rows_per_item - 1) / call->rows_per_item * call->items_per_rows;
}

INLINE int64_t quant_width(const quant_call *call) { return call->num_groups * QUANT_GROUP; }

INLINE quant_outlier *quant_row_outliers(const quant_call *call, int64_t row) {
  return call->outliers + row * call->most_outliers;
}

/* Sets `sums` [rows, 32] to the products of a block and a tile, in code for its number of rows. */
static void quant_any_tile(const quant_call *call, const uint8_t *weight, int64_t row, void *sums, const uint8_t *later,
                           int lines, int passes) {
  const quant_operands operands = {weight, later, call->codes + row * quant_width(call), call->num_groups, lines, passes};
#define ROWS(count) \
  case count: quant_tile(&operands, sums, count); break;
  switch (quant_rows_left(call, row)) {
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
INLINE void quant_add_up(const quant_call *call, const uint8_t *weight, quant_ints *totals) {
  quant_codes sums[4][QUANT_VECTORS]; /* in chains that do not wait for each other */
  for (int i = 0; i < 4; i++)
    for (int v = 0; v < QUANT_VECTORS; v++) sums[i][v] = quant_none();
  for (int64_t input = 0; input < quant_width(call); input += 16)
    for (int i = 0; i < 4; i++, weight += 4 * QUANT_BLOCK)
      for (int v = 0; v < QUANT_VECTORS; v++)
        sums[i][v] = quant_four(sums[i][v], quant_load(weight + 4 * QUANT_LANES * v), 0x01010101);
  for (int v = 0; v < QUANT_VECTORS; v++) {
    totals[v] = (quant_ints)sums[0][v];
    for (int i = 1; i < 4; i++) totals[v] += (quant_ints)sums[i][v];
  }
}

/* Adds the corrections of a row's codes to its `sums` of a block. */
INLINE void quant_add_rests(const quant_call *call, const uint8_t *weight, const quant_ints *totals, int64_t row, void *sums) {
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
INLINE void quant_scale_row(const quant_call *call, const quant_floats *scales, int64_t row, void *sums) {
  const quant_factor factor = call->factors[row];
  for (int v = 0; v < QUANT_VECTORS; v++) {
    const quant_ints total = ((quant_ints *)sums)[v] + factor.first;
    ((quant_floats *)sums)[v] = __builtin_convertvector(total, quant_floats) * (scales[v] * factor.scale);
  }
}

/* Sets how the call is cut into items. */
static void quant_plan(quant_call *call) {
  const int64_t num_rows = call->num_rows;
  call->num_groups = (call->inputs + QUANT_GROUP - 1) / QUANT_GROUP;
  call->num_blocks = (call->outputs + QUANT_BLOCK - 1) / QUANT_BLOCK;
  const int64_t block_bytes = quant_block_bytes(call->num_groups);
  int64_t item_bytes = call->num_blocks * block_bytes / QUANT_ITEMS;
  if (item_bytes < QUANT_LEAST_ITEM) item_bytes = QUANT_LEAST_ITEM;
  if (item_bytes > QUANT_LARGEST_ITEM) item_bytes = QUANT_LARGEST_ITEM;
  call->blocks_per_item = (item_bytes + block_bytes - 1) / block_bytes;
  call->items_per_rows = (call->num_blocks + call->blocks_per_item - 1) / call->blocks_per_item;
  const int64_t least_tiles = (num_rows + QUANT_ROWS - 1) / QUANT_ROWS;
#if defined(__AMX_INT8__)
  call->has_tiles = num_rows >= QUANT_TILE_ROWS;
#endif
  call->rows_per_tile = call->has_tiles ? 1 /* a row's codes are neighbours */ : (num_rows + least_tiles - 1) / least_tiles;
  const int64_t num_tiles = quant_num_tiles(call), num_parts = (num_rows + QUANT_MOST_ROWS - 1) / QUANT_MOST_ROWS;
  call->rows_per_item = (num_tiles + num_parts - 1) / num_parts * call->rows_per_tile;
  call->most_outliers = quant_most_outliers(quant_width(call), call->means != NULL);
}

/* Returns the bytes of memory that a call needs, and sets its parts of `room` unless that is null. */
static int64_t quant_place(quant_call *call, void *room) {
  const int64_t num_rows = call->num_rows, num_outliers = num_rows * call->most_outliers;
  if (room) {
    call->factors = room;
    call->outliers = (void *)(call->factors + num_rows);
    call->rests = (void *)(call->outliers + num_outliers);
    call->codes = (void *)(call->rests + num_rows);
  }
  return num_outliers * (int64_t)sizeof(quant_outlier) +
         num_rows * ((int64_t)(sizeof(quant_factor) + sizeof(quant_rests)) + quant_width(call));
}

static void quant_note_shifts(quant_call *call) {
  for (int64_t row = 0; row < call->num_rows; row++) call->is_shifted |= call->rests[row].shift != 0;
}

/* Returns magnitudes. */
INLINE lanes quant_sizes(lanes x) {
  typedef uint32_t lane_bits __attribute__((vector_size(32)));
  return (lanes)((lane_bits)x & 0x7fffffffu);
}
#endif

/* Sets `values` to the values of a group of `size`, 0 beyond `left`. */
INLINE void NAME(quant_values)(const element *x, int64_t left, float *values, const int size) {
  if (left >= size) {
    SIMD for (int i = 0; i < size; i++) values[i] = WIDEN(x[i]);
  } else {
    for (int i = 0; i < size; i++) values[i] = i < left ? WIDEN(x[i]) : 0.0f;
  }
}

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
INLINE void NAME(quant_code_row)(const quant_call *call, int64_t row, int8_t *codes, int64_t rows) {
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
  for (int64_t begin = 0; begin < quant_width(call); begin += QUANT_GROUP) {
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
  call->factors[row] = (quant_factor){-128 * sum, is_large ? mean / QUANT_STEPS : is_finite ? 0.0f : NAN};
}

static void NAME(quant_code_tile)(const void *data, int64_t tile) {
  const quant_call *call = data;
  const int64_t row = tile * call->rows_per_tile, rows = quant_rows_left(call, row);
  for (int64_t r = 0; r < rows; r++) {
    int8_t *codes = call->codes + row * quant_width(call) + 4 * r;
    NAME(quant_code_row)(call, row + r, codes, rows);
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

/* Writes a row's outputs of a block. */
INLINE void NAME(quant_put)(const quant_call *call, int64_t row, int64_t block, float *sums) {
  const int64_t first = block * QUANT_BLOCK, left = call->outputs - first;
  NAME(quant_finish)((element *)call->out + row * call->outputs + first, call->bias ? (const element *)call->bias + first : 0,
                     left < QUANT_BLOCK ? (int)left : QUANT_BLOCK, call->gelu, sums);
}

/* Computes rows [begin, end) of a block. Each pass of its tiles prefetches a part of the next block, which follows in memory. A
   single tile prefetches, in its first pass, what it needs itself a little later. So memory is read during computation. */
static void NAME(quant_block)(const quant_call *call, int64_t block, int64_t begin, int64_t end) {
  const int64_t block_bytes = quant_block_bytes(call->num_groups);
  const int64_t num_tiles = (end - begin + call->rows_per_tile - 1) / call->rows_per_tile;
  const int64_t passes = num_tiles > 1 ? quant_passes(call->rows_per_tile) : 1, num_passes = num_tiles * passes;
  const int64_t num_lines = QUANT_GROUP_BYTES / 64, share = (num_lines + num_passes - 1) / num_passes;
  const uint8_t *first = call->weight + block * block_bytes, *weight = first + QUANT_SCALE_BYTES;
  quant_floats scales[QUANT_VECTORS];
  for (int v = 0; v < QUANT_VECTORS; v++) scales[v] = quant_scales(first + 2 * QUANT_LANES * v);
  const uint8_t *later = weight + (num_tiles > 1 ? block_bytes : QUANT_AHEAD);
  const int is_busy = end - begin >= QUANT_BUSY_ROWS;
  int64_t left = num_tiles > 1 || is_busy ? num_lines : 0;
  quant_ints totals[QUANT_VECTORS] = {{0}};
  if (call->is_shifted) quant_add_up(call, weight, totals);
#if defined(__AMX_INT8__)
  if (call->has_tiles) {
    int32_t sums[QUANT_MOST_ROWS * QUANT_BLOCK] __attribute__((aligned(64)));
    const int64_t width = quant_width(call);
    quant_tiles(call->codes + begin * width, width, weight, call->num_groups, end - begin, sums);
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
    const int64_t lines = left < share ? left : share, rows = quant_rows_left(call, row);
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

/* An item is some blocks of 32 outputs of some tiles of rows. */
static void NAME(quant_item)(const void *data, int64_t item) {
  const quant_call *call = data;
  const int64_t begin = item / call->items_per_rows * call->rows_per_item, left = call->num_rows - begin;
  const int64_t end = begin + (left < call->rows_per_item ? left : call->rows_per_item);
  const int64_t first = item % call->items_per_rows * call->blocks_per_item;
  for (int64_t block = first; block < first + call->blocks_per_item && block < call->num_blocks; block++)
    NAME(quant_block)(call, block, begin, end);
}

static void NAME(quant_sum_row)(const void *data, int64_t row) {
  const quant_call *call = data;
  ((float *)call->out)[row] = NAME(quant_magnitudes)((const element *)call->x + row * call->inputs, call->inputs, 0);
}

/* x: [num_rows, inputs], sums: [num_rows]. */
PUBLIC void NAME(sum_magnitudes)(const element *x, float *sums, int64_t num_rows, int64_t inputs) {
  quant_call call = {.x = x, .out = sums, .inputs = inputs};
  run_items(num_rows, inputs, NAME(quant_sum_row), &call);
}

/* x: [num_rows, inputs], weight: [blocks, bytes of a block], bias (or null): [outputs], means (or null): [num_rows],
   out: [num_rows, outputs]. Returns 0, or -1 without memory. */
PUBLIC int NAME(quantized_linear)(const element *x, const uint8_t *weight, const element *bias, const float *means, element *out,
                                  int64_t num_rows, int64_t inputs, int64_t outputs, int64_t gelu) {
  if (num_rows == 0) return 0;
  quant_call call = {.x = x, .bias = bias, .means = means, .out = out, .weight = weight, .num_rows = num_rows,
                     .inputs = inputs, .outputs = outputs, .gelu = (int)gelu};
  quant_plan(&call);
  void *room = kept_room((size_t)quant_place(&call, 0));
  if (!room) return -1;
  quant_place(&call, room);
  run_items(quant_num_tiles(&call), 2 * num_rows * inputs, NAME(quant_code_tile), &call);
  quant_note_shifts(&call);
  run_ordered_items(num_rows <= call.rows_per_tile ? IN_STRETCHES : BY_TURNS, quant_num_items(&call), inputs * outputs,
                    NAME(quant_item), &call);
  return 0;
}
