/* Products of block_linear.c for forms with scales per group of inputs. */

#ifndef SLUICE_GROUP_SCALES
#define SLUICE_GROUP_SCALES
/* Sets `sums` [rows, 32] to the products of a block and a tile, in code for its form and its number of rows. */
static void block_any_tile(const block_operands *operands, float *sums, int64_t rows) {
  const block_kind kind = block_kind_of(&operands->part->form);
#if BLOCK_ROWS == 1
  (void)rows;
  block_tile(operands, sums, 1, kind);
#else
#define KIND(name, count) \
  case name: block_tile(operands, sums, count, name); break;
#define ROWS(count)                                                                                       \
  case count:                                                                                             \
    switch (kind) {                                                                                       \
      KIND(BLOCK_NIBBLES, count) KIND(BLOCK_HALVES, count) KIND(BLOCK_TABLE, count) KIND(BLOCK_FIFTH, count) \
      KIND(BLOCK_SIXTH, count) KIND(BLOCK_BYTES, count)                                                   \
    }                                                                                                     \
    break;
  switch (rows) { ROWS(1) ROWS(2) ROWS(3) ROWS(4) }
#undef ROWS
#undef KIND
#endif
}

/* The most rows of an item, with the padding of its last tiles. */
enum { BLOCK_SUMS = BLOCK_MOST_ROWS + 2 * 6 };

/* Where a row's outputs of a block are: `bytes` of them, `stride` bytes before the next row's. */
typedef struct {
  const char *at;
  int64_t stride, bytes;
} block_place_of_row;

/* Sets `sums` [rows, 32] to the outputs of rows [begin, end) of a block, before the bias. With many rows, `out` is prefetched:
   it is larger than the caches. */
static void block_sums(const block_call *call, block_operands *operands, int64_t begin, int64_t end, float *sums, block_place_of_row out) {
#if defined(__AVX512VNNI__)
  if (call->num_rows >= BLOCK_MANY_ROWS) {
    block_stretch stretch;
    const int64_t passes = (end - begin + call->rows_per_tile - 1) / call->rows_per_tile;
    stretch.lines = (int)((operands->part->unit_bytes / operands->part->form.groups / 64 + passes) / passes);
    memset(sums, 0, sizeof(float) * (size_t)((end - begin) * BLOCK_SIZE));
    for (int64_t first = 0; first < call->num_groups; first += BLOCK_STRETCH) {
      const int64_t left = call->num_groups - first;
      stretch.num_groups = left < BLOCK_STRETCH ? (int)left : BLOCK_STRETCH;
      block_any_expand(operands, first, &stretch);
      for (int64_t row = begin; row < end; row += call->rows_per_tile) {
        const int64_t rows = block_rows_left(call, row), place = row * call->num_groups + first * rows;
        if (left <= BLOCK_STRETCH)
          for (int64_t r = row; r < row + rows; r++)
            for (int64_t byte = 0; byte < out.bytes; byte += 64) __builtin_prefetch(out.at + (r - begin) * out.stride + byte, 1);
        block_any_stretch_tile(&stretch, operands->part, call->codes + place * BLOCK_SIZE, call->factors + place,
                               sums + (row - begin) * BLOCK_SIZE, rows);
      }
    }
    return;
  }
#endif
  (void)out;
  for (int64_t row = begin; row < end; row += call->rows_per_tile) {
    operands->codes = call->codes + row * call->num_groups * BLOCK_SIZE;
    operands->factors = call->factors + row * call->num_groups;
    block_any_tile(operands, sums + (row - begin) * BLOCK_SIZE, block_rows_left(call, row));
  }
}

/* Makes the codes of 32 activations, whose largest magnitude has the code 127. A group with a number that is not finite has the
   scale NaN, which makes all outputs of its row NaN. `magnitude`: the bits of the largest, which sort like numbers. */
INLINE block_factor block_round(const float *values, uint32_t magnitude, int8_t *codes) {
  const float largest = float_of(magnitude);
  const float rate = largest > QUANT_LEAST_MAGNITUDE ? 127.0f / largest : 0.0f;
  if (magnitude >= 0x7f800000u) {
    memset(codes, 0, BLOCK_SIZE);
    return (block_factor){NAN, NAN, {0, 0}};
  }
  block_factor factor = {largest > QUANT_LEAST_MAGNITUDE ? largest / 127.0f : 0.0f, 0.0f, {0, 0}};
  for (int half = 0; half < 2; half++, values += 16, codes += 16) {
#if defined(__AVX512VNNI__)
    const __m512i whole = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(values), _mm512_set1_ps(rate)));
    _mm_storeu_si128((void *)codes, _mm512_cvtepi32_epi8(whole));
    factor.halves[half] = (int16_t)_mm512_reduce_add_epi32(whole);
#else
    const float to_integer = 12582912.0f; /* 1.5 * 2^23: see power_of_2 */
    uint32_t sum = 0;
    SIMD_SUM(sum) for (int i = 0; i < 16; i++) {
      const uint32_t whole = bits_of(values[i] * rate + to_integer) - bits_of(to_integer);
      codes[i] = (int8_t)(uint8_t)whole;
      sum += whole;
    }
    factor.halves[half] = (int16_t)sum;
#endif
  }
  factor.sum = factor.scale * (float)(factor.halves[0] + factor.halves[1]);
  return factor;
}
#endif

/* Makes a row's codes; the row is one of `rows` of a tile. */
INLINE void NAME(block_code_row)(const block_call *call, const element *x, int8_t *codes, block_factor *factors, int64_t rows) {
  for (int64_t group = 0; group < call->num_groups; group++) {
    const int64_t begin = group * BLOCK_SIZE, left = call->inputs - begin;
    float values[BLOCK_SIZE] __attribute__((aligned(64)));
    int8_t together[BLOCK_SIZE];
    const uint32_t largest =
        left >= BLOCK_SIZE ? NAME(largest_magnitude)(x + begin, BLOCK_SIZE) : NAME(largest_magnitude)(x + begin, left);
    NAME(quant_values)(x + begin, left, values, BLOCK_SIZE);
    factors[group * rows] = block_round(values, largest, together);
    quant_lay(together, codes + begin * rows, 4 * rows, BLOCK_SIZE);
  }
}

/* Computes rows [begin, end) of a block of a part. */
static void NAME(block_block)(const block_call *call, const block_part *part, int64_t block, int64_t begin, int64_t end) {
  const int64_t first = block * BLOCK_SIZE, left = part->outputs - first;
  const element *bias = call->bias ? (const element *)call->bias + part->first_output + first : 0;
  element *out = (element *)call->out + part->first_output + first;
  block_operands operands = {part, part->weight + block * part->num_units * part->unit_bytes,
                             part->table, 0, 0};
  float sums[BLOCK_SUMS * BLOCK_SIZE] __attribute__((aligned(64)));
  const int64_t size = sizeof(element);
  block_sums(call, &operands, begin, end, sums,
             (block_place_of_row){(const char *)(out + begin * call->outputs), call->outputs * size, BLOCK_SIZE * size});
  for (int64_t row = begin; row < end; row++)
    NAME(quant_finish)(out + row * call->outputs, bias, left < BLOCK_SIZE ? (int)left : BLOCK_SIZE, call->gelu,
                       sums + (row - begin) * BLOCK_SIZE);
}
