/* Products of weights in block forms with many rows, on AVX-512 with VNNI. The codes of a block and some groups become bytes
   once for all rows; a tile's sums are in registers meanwhile. The results are those of block_tile, to the bit. */
#if defined(__AVX512VNNI__) && !defined(SLUICE_BLOCK_STRETCH)
#define SLUICE_BLOCK_STRETCH

/* Groups of a stretch, which stays in the nearest cache; the most rows of a tile; the fewest rows for which making bytes once
   is faster than making them anew for each tile of block_tile. */
enum { BLOCK_STRETCH = 8, BLOCK_STRETCH_ROWS = 6, BLOCK_MANY_ROWS = 5 };

typedef struct {
  uint8_t codes[BLOCK_STRETCH][BLOCK_SIZE * BLOCK_SIZE];
  float scales[BLOCK_STRETCH][2][BLOCK_SIZE], minima[BLOCK_STRETCH][2][BLOCK_SIZE];
  const uint8_t *later; /* the memory of the next stretch */
  int num_groups, lines /* of it that a tile prefetches with each group */;
} __attribute__((aligned(64))) block_stretch;

/* Sets `stretch` to the groups of a block from `first` on. */
INLINE void block_expand(const block_operands *of, int64_t first, block_stretch *stretch, const block_kind kind) {
  const block_part *part = of->part;
  const int halves = block_halves(kind), groups = part->form.groups, has_minimum = part->form.has_minimum | part->form.has_zero;
  const uint8_t *unit = of->weight + (uint32_t)first / (uint32_t)groups * part->unit_bytes, *group = unit + part->groups_at;
  for (int g = 0, left = groups; g < stretch->num_groups; g++, group += part->group_bytes) {
    for (int output = 0; output < BLOCK_SIZE; output += QUANT_LANES) {
      PRAGMA(GCC unroll 8) for (int four = 0; four < 8; four++)
        _mm512_store_si512(stretch->codes[g] + BLOCK_FOUR * four + 4 * output,
                           block_bytes(group + part->codes_at + 4 * output, of->table, four, kind));
      quant_floats scales[2], minima[2];
      block_scales(part, unit, group, output, halves, scales, minima);
      for (int half = 0; half < halves; half++) {
        *(quant_floats *)(stretch->scales[g][half] + output) = scales[half];
        if (has_minimum) *(quant_floats *)(stretch->minima[g][half] + output) = minima[half];
      }
    }
    if (--left == 0) left = groups, unit += part->unit_bytes, group = unit + part->groups_at - part->group_bytes;
  }
  stretch->later = group;
}

/* Adds a tile's products with a stretch to `sums` [rows, 32]; `codes` and `factors` are the tile's from the stretch on. Memory of
   the next stretch is prefetched meanwhile. */
INLINE void block_stretch_tile(block_stretch *stretch, const block_part *part, const int8_t *codes,
                               const block_factor *factors, float *sums, const int rows, const int halves) {
  const int has_minimum = part->form.has_minimum | part->form.has_zero;
  quant_floats all[BLOCK_STRETCH_ROWS][2];
  for (int r = 0; r < rows; r++)
    for (int v = 0; v < 2; v++) all[r][v] = *(quant_floats *)(sums + r * BLOCK_SIZE + QUANT_LANES * v);
  const uint8_t *later = stretch->later;
  for (int g = 0; g < stretch->num_groups; g++, factors += rows) {
    for (int line = 0; line < stretch->lines; line++, later += 64) __builtin_prefetch(later, 0, 2);
    const uint8_t *from = stretch->codes[g];
    for (int half = 0; half < halves; half++) {
      quant_codes products[BLOCK_STRETCH_ROWS][2];
      for (int r = 0; r < rows; r++)
        products[r][0] = products[r][1] = _mm512_set1_epi32(-part->form.offset * block_row_sum(factors + r, half, halves));
      PRAGMA(GCC unroll 1) for (int i = 0; i < 8 / halves; i++, from += BLOCK_FOUR, codes += 4 * rows) {
        const quant_codes first = quant_load(from), second = quant_load(from + 4 * QUANT_LANES);
        for (int r = 0; r < rows; r++) {
          int32_t inputs;
          memcpy(&inputs, codes + 4 * r, sizeof inputs);
          products[r][0] = quant_four_in_place(products[r][0], first, inputs);
          products[r][1] = quant_four_in_place(products[r][1], second, inputs);
        }
      }
      for (int v = 0; v < 2; v++) {
        const quant_floats scales = *(const quant_floats *)(stretch->scales[g][half] + QUANT_LANES * v);
        const quant_floats minima = *(const quant_floats *)(stretch->minima[g][half] + QUANT_LANES * v);
        for (int r = 0; r < rows; r++)
          block_add(&all[r][v], (quant_ints)products[r][v], scales, has_minimum ? &minima : 0, factors + r, half, halves);
      }
    }
  }
  stretch->later = later;
  for (int r = 0; r < rows; r++)
    for (int v = 0; v < 2; v++) *(quant_floats *)(sums + r * BLOCK_SIZE + QUANT_LANES * v) = all[r][v];
}

static void block_any_expand(const block_operands *of, int64_t first, block_stretch *stretch) {
#define KIND(name) \
  case name: block_expand(of, first, stretch, name); break;
  switch (block_kind_of(&of->part->form)) {
    KIND(BLOCK_NIBBLES) KIND(BLOCK_HALVES) KIND(BLOCK_TABLE) KIND(BLOCK_FIFTH) KIND(BLOCK_SIXTH) KIND(BLOCK_BYTES)
  }
#undef KIND
}

static void block_any_stretch_tile(block_stretch *stretch, const block_part *part, const int8_t *codes,
                                   const block_factor *factors, float *sums, int64_t rows) {
  const int halves = block_halves(block_kind_of(&part->form));
#define ROWS(count)                                                                 \
  case count:                                                                       \
    if (halves == 2)                                                                \
      block_stretch_tile(stretch, part, codes, factors, sums, count, 2);            \
    else                                                                            \
      block_stretch_tile(stretch, part, codes, factors, sums, count, 1);            \
    break;
  switch (rows) {
    ROWS(1) ROWS(2) ROWS(3) ROWS(4) ROWS(5) ROWS(6)
  }
#undef ROWS
}
#endif
