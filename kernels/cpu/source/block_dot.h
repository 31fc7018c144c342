/* Products of weights in block forms with a tile of rows, whose activations are codes of 8 bits. The integer sum of a group of
   32 inputs, or of each half of it, is exact; groups are added in order. */
#ifndef SLUICE_BLOCK_DOT
#define SLUICE_BLOCK_DOT

/* The most rows of a tile: portable code has one loop for all forms. */
#if defined(__AVX2__)
#define BLOCK_ROWS 4
#else
#define BLOCK_ROWS 1
#endif

/* The prefetch distance in bytes of a weight. */
enum { BLOCK_AHEAD = 4 << 10 };

/* How the codes of a group become bytes. Groups of SIXTH and HALVES have a scale for each half. */
typedef enum { BLOCK_NIBBLES, BLOCK_HALVES, BLOCK_TABLE, BLOCK_FIFTH, BLOCK_SIXTH, BLOCK_BYTES } block_kind;

INLINE block_kind block_kind_of(const block_form *form) {
  if (form->table) return BLOCK_TABLE;
  if (form->bits == 4) return form->num_factors == 2 ? BLOCK_HALVES : BLOCK_NIBBLES;
  return form->bits == 5 ? BLOCK_FIFTH : form->bits == 6 ? BLOCK_SIXTH : BLOCK_BYTES;
}

INLINE int block_halves(const block_kind kind) { return kind == BLOCK_HALVES || kind == BLOCK_SIXTH ? 2 : 1; }

/* A group of a row's activations: its scale, the sums of the codes of each half, and the sum of all times the scale. */
typedef struct {
  float scale, sum;
  int16_t halves[2];
} block_factor;

#if defined(__AVX512VNNI__)
INLINE quant_codes block_look_up(quant_codes codes, const uint8_t *table) {
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_load_si128((const void *)table)), codes);
}
/* Returns `codes` with the bits of `bits`, shifted to the left, at `mask`. */
INLINE quant_codes block_merge(quant_codes codes, quant_codes bits, const int left, const int mask) {
  bits = left > 0 ? _mm512_slli_epi32(bits, left > 0 ? left : 0) : _mm512_srli_epi32(bits, left < 0 ? -left : 0);
  return _mm512_ternarylogic_epi32(codes, bits, _mm512_set1_epi8((char)mask), 0xf8);
}
#elif QUANT_LANES == 8
INLINE quant_codes block_look_up(quant_codes codes, const uint8_t *table) {
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_load_si128((const void *)table)), codes);
}
INLINE quant_codes block_merge(quant_codes codes, quant_codes bits, const int left, const int mask) {
  bits = left > 0 ? _mm256_slli_epi32(bits, left > 0 ? left : 0) : _mm256_srli_epi32(bits, left < 0 ? -left : 0);
  return _mm256_or_si256(codes, _mm256_and_si256(bits, _mm256_set1_epi8((char)mask)));
}
#else
INLINE quant_codes block_look_up(quant_codes codes, const uint8_t *table) {
  for (int i = 0; i < QUANT_LANES; i++) {
    const uint32_t four = (uint32_t)codes[i];
    codes[i] = (int32_t)(table[four & 15] | (uint32_t)table[four >> 8 & 15] << 8 | (uint32_t)table[four >> 16 & 15] << 16 |
                         (uint32_t)table[four >> 24 & 15] << 24);
  }
  return codes;
}
INLINE quant_codes block_merge(quant_codes codes, quant_codes bits, const int left, const int mask) {
  bits = left > 0 ? bits << (left > 0 ? left : 0) : bits >> (left < 0 ? -left : 0);
  return codes | (bits & 0x01010101 * mask);
}
#endif

/* Returns the codes of inputs 4 * four to 4 * four + 3 of a group, as bytes. `codes`: the group's, from a vector's first
   output on. */
INLINE quant_codes block_bytes(const uint8_t *codes, const uint8_t *table, const int four, const block_kind kind) {
  if (kind == BLOCK_BYTES) return quant_load(codes + BLOCK_FOUR * four);
  const quant_codes both = quant_load(codes + BLOCK_FOUR * (four % 4));
  const quant_codes mine = four < 4 ? quant_low(both) : quant_high(both);
  if (kind == BLOCK_TABLE) return block_look_up(mine, table);
  if (kind == BLOCK_FIFTH) return block_merge(mine, quant_load(codes + 4 * BLOCK_FOUR), 4 - four, 0x10);
  if (kind == BLOCK_SIXTH)
    return block_merge(mine, quant_load(codes + (4 + four / 4) * BLOCK_FOUR), 4 - 2 * (four % 4), 0x30);
  return mine;
}

/* Adds the products of eight inputs. With AVX2 those of 4-bit codes stay in 16 bits until the end of a group (32 * 15 * 127 / 2
   fits); of 5 and 6 bits, two products of pairs are added there (4 * 63 * 127); 8 bits are signed, and pairs fit. */
INLINE quant_codes block_eight(quant_codes sums, quant_codes first, quant_codes second, int32_t four, int32_t next,
                               const block_kind kind) {
#if QUANT_LANES == 8
  if (kind == BLOCK_BYTES || kind == BLOCK_TABLE) {
    const __m256i flip = _mm256_set1_epi8(-128), x = _mm256_set1_epi32(four), y = _mm256_set1_epi32(next);
    first = _mm256_xor_si256(first, flip), second = _mm256_xor_si256(second, flip);
    first = _mm256_maddubs_epi16(_mm256_abs_epi8(first), _mm256_sign_epi8(x, first));
    second = _mm256_maddubs_epi16(_mm256_abs_epi8(second), _mm256_sign_epi8(y, second));
    return _mm256_add_epi32(sums, _mm256_add_epi32(quant_widened(first), quant_widened(second)));
  }
  const __m256i pairs = _mm256_add_epi16(quant_pairs(first, four), quant_pairs(second, next));
  if (kind == BLOCK_FIFTH || kind == BLOCK_SIXTH) return _mm256_add_epi32(sums, quant_widened(pairs));
  return _mm256_add_epi16(sums, pairs);
#else
  (void)kind;
  return quant_four(quant_four(sums, first, four), second, next);
#endif
}

/* Sums of a group, in 32 bits. */
INLINE quant_ints block_total(quant_codes sums, const block_kind kind) {
#if QUANT_LANES == 8
  if (kind == BLOCK_NIBBLES || kind == BLOCK_HALVES) sums = quant_widened(sums);
#endif
  (void)kind;
  return (quant_ints)sums;
}

/* The number that the products' codes have too much: with AVX2, codes of 8 bits are signed. */
INLINE int32_t block_offset(const block_part *part, const block_kind kind) {
  return part->form.offset - (QUANT_LANES == 8 && (kind == BLOCK_BYTES || kind == BLOCK_TABLE) ? 128 : 0);
}

INLINE int32_t block_row_sum(const block_factor *factor, const int half, const int halves) {
  return halves == 2 ? factor->halves[half] : factor->halves[0] + factor->halves[1];
}

/* Adds the products of a group, whose integer sums are `total`, to a row's sums. */
INLINE void block_add(quant_floats *sum, quant_ints total, quant_floats scale, const quant_floats *minimum,
                      const block_factor *factor, const int half, const int halves) {
  *sum += __builtin_convertvector(total, quant_floats) * (scale * factor->scale);
  if (minimum) *sum += *minimum * (halves == 2 ? factor->scale * factor->halves[half] : factor->sum);
}

/* The operands of a tile: a block of `part`, and a tile's codes [groups, 8, rows, 4] and factors [groups, rows]. */
typedef struct {
  const block_part *part;
  const uint8_t *weight, *table;
  const int8_t *codes;
  const block_factor *factors;
} block_operands;

/* Adds the products of a group to the sums [rows, 32] for the vectors of outputs from `output` on. */
INLINE void block_group(const block_operands *of, const uint8_t *unit, const uint8_t *group, const int8_t *codes,
                        const block_factor *factors, float *sums, const int output, const int rows, const block_kind kind) {
  const int halves = block_halves(kind), vectors = quant_vectors(rows);
  const uint8_t *from = group + of->part->codes_at + 4 * output;
  const int32_t offset = block_offset(of->part, kind);
  const int has_minimum = of->part->form.has_minimum | of->part->form.has_zero;
  quant_codes products[BLOCK_ROWS][QUANT_VECTORS][2];
  for (int r = 0; r < rows; r++)
    for (int v = 0; v < vectors; v++) products[r][v][0] = products[r][v][1] = quant_none();
  PRAGMA(GCC unroll 4) for (int pair = 0; pair < 4; pair++, codes += 8 * rows) {
    const int half = halves == 2 ? pair / 2 : 0;
    quant_codes first[QUANT_VECTORS], second[QUANT_VECTORS];
    for (int v = 0; v < vectors; v++) {
      first[v] = block_bytes(from + 4 * QUANT_LANES * v, of->table, 2 * pair, kind);
      second[v] = block_bytes(from + 4 * QUANT_LANES * v, of->table, 2 * pair + 1, kind);
    }
    for (int r = 0; r < rows; r++) {
      int32_t four, next;
      memcpy(&four, codes + 4 * r, sizeof four);
      memcpy(&next, codes + 4 * (rows + r), sizeof next);
      for (int v = 0; v < vectors; v++)
        products[r][v][half] = block_eight(products[r][v][half], first[v], second[v], four, next, kind);
    }
  }
  for (int v = 0; v < vectors; v++) {
    quant_floats scales[2], minima[2];
    block_scales(of->part, unit, group, output + QUANT_LANES * v, halves, scales, minima);
    for (int r = 0; r < rows; r++)
      for (int half = 0; half < halves; half++)
        block_add((quant_floats *)(void *)(sums + r * BLOCK_SIZE + output + QUANT_LANES * v),
                  block_total(products[r][v][half], kind) - offset * block_row_sum(factors + r, half, halves), scales[half],
                  has_minimum ? minima + half : 0, factors + r, half, halves);
  }
}

/* Sets `sums` [rows, 32] to a block's outputs for a tile, before the bias. The first pass prefetches the block's memory a little
   ahead: the processor is too busy to read ahead. */
INLINE void block_tile(const block_operands *of, float *sums, const int rows, const block_kind kind) {
  const int step = quant_vectors(rows) * QUANT_LANES;
  const block_part *part = of->part;
  memset(sums, 0, sizeof(float) * (size_t)(rows * BLOCK_SIZE));
  for (int output = 0; output < BLOCK_SIZE; output += step) {
    const uint8_t *unit = of->weight;
    const int8_t *codes = of->codes;
    const block_factor *factors = of->factors;
    for (int64_t i = 0; i < part->num_units; i++, unit += part->unit_bytes) {
      const uint8_t *group = unit + part->groups_at;
      for (int g = 0; g < part->form.groups; g++, group += part->group_bytes) {
        if (output == 0)
          for (int64_t line = 0; line < part->group_bytes; line += 64) __builtin_prefetch(group + BLOCK_AHEAD + line, 0, 0);
        __asm__ volatile("" ::: "memory"); /* sums stay in memory: in registers they would displace the products */
        block_group(of, unit, group, codes, factors, sums, output, rows, kind);
        codes += BLOCK_SIZE * rows;
        factors += rows;
      }
    }
  }
}
#endif
