/* Lays a file's rows in block forms out for block_linear.c, and reads rows back: see kernels/operations/block_linear.py. */

#ifndef SLUICE_BLOCK_PACK
#define SLUICE_BLOCK_PACK
/* Bytes of a block whose outputs a thread packs one after another: they stay in its nearest cache. */
enum { BLOCK_PACKED_AT_ONCE = 16 << 10 };

typedef uint8_t block_sixteen __attribute__((vector_size(16), aligned(1), may_alias));
typedef uint32_t block_words __attribute__((vector_size(16), aligned(1), may_alias));
typedef uint64_t block_pair __attribute__((vector_size(16), aligned(1), may_alias));

/* Writes `count` four-byte words of an output's codes, each of them at its place of a block. */
INLINE void block_put_words(uint8_t *codes, const uint8_t *words, const int count) {
  for (int i = 0; i < count; i++) memcpy(codes + i * BLOCK_FOUR, words + 4 * i, 4);
}

/* Writes 4-bit codes, which are bytes here; only the low half of a byte counts. */
INLINE void block_put_nibbles(uint8_t *codes, block_sixteen first, block_sixteen second) {
  const block_sixteen both = (first & 15) | second << 4;
  block_put_words(codes, (const uint8_t *)&both, 4);
}

/* Writes the bits that any of the words has. */
INLINE void block_put_union(uint8_t *to, block_words x) {
  const uint32_t all = (x[0] | x[1]) | (x[2] | x[3]);
  memcpy(to, &all, sizeof all);
}

/* Writes the codes of an output's 32 inputs of a group, which are bytes here. */
INLINE void block_put_codes(uint8_t *to, const block_sixteen halves[2], const int bits) {
  if (bits == 8) {
    block_put_words(to, (const uint8_t *)halves, 8);
    return;
  }
  block_put_nibbles(to, halves[0], halves[1]);
  const block_words first = (block_words)halves[0] >> 4, second = (block_words)halves[1] >> 4;
  if (bits == 5) {
    const block_words lower = (first & 0x01010101u) << (block_words){0, 1, 2, 3};
    block_put_union(to + 4 * BLOCK_FOUR, lower | (second & 0x01010101u) << (block_words){4, 5, 6, 7});
  } else if (bits == 6) {
    block_put_union(to + 4 * BLOCK_FOUR, (first & 0x03030303u) << (block_words){0, 2, 4, 6});
    block_put_union(to + 5 * BLOCK_FOUR, (second & 0x03030303u) << (block_words){0, 2, 4, 6});
  }
}

/* The place of field `i`: its byte, and its shift there. */
INLINE int block_byte_of(const block_bits bits, int i) {
  const int per_stretch = bits.stretch * 8 / bits.num_bits;
  return bits.first_byte + i / per_stretch * bits.stretch + i % per_stretch % bits.stretch;
}

INLINE int block_shift_of(const block_bits bits, int i) {
  return i % (bits.stretch * 8 / bits.num_bits) / bits.stretch * bits.num_bits;
}

INLINE int block_field(const uint8_t *raw, const block_bits bits, int i) {
  return raw[block_byte_of(bits, i)] >> block_shift_of(bits, i) & ((1 << bits.num_bits) - 1);
}

/* Returns fields [i, i + 16). They are in as many neighbouring bytes, or bits. */
INLINE block_sixteen block_fields(const uint8_t *raw, const block_bits bits, int i) {
  if (bits.stretch >= 16) {
    const block_sixteen bytes = *(const block_sixteen *)(raw + block_byte_of(bits, i));
    return bytes >> block_shift_of(bits, i) & (uint8_t)((1 << bits.num_bits) - 1);
  }
  const uint8_t *two = raw + block_byte_of(bits, i);
  const uint64_t each = 0x0101010101010101u; /* byte */
  const block_sixteen bytes = (block_sixteen)((block_pair){two[0] * each, two[1] * each});
  return (block_sixteen)((bytes & (block_sixteen){1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128}) != 0) & 1;
}

/* Returns the factor with this index among those of scales and then of minima. */
INLINE int block_factor_at(const uint8_t *raw, const block_source *from, int i) {
  if (!from->has_six_bits) {
    const int low = block_field(raw, from->low_factors, i);
    const int high = from->high_factors.stretch ? block_field(raw, from->high_factors, i) << from->low_factors.num_bits : 0;
    return (low | high) - from->factor_offset;
  }
  const uint8_t *bytes = raw + from->low_factors.first_byte, *mine = bytes + i / 8 * 4 + i % 4;
  return i % 8 < 4 ? *mine & 63 : (bytes[8 + i % 4] >> i / 8 * 4 & 15) | *mine >> 6 << 4;
}

/* Packs a unit of an output: `to` is the unit in its block. `form` and `from` are constants. */
INLINE void block_pack_unit(const block_part *part, const block_form *form, const block_source *from, const uint8_t *raw,
                            uint8_t *to, int output) {
  const int scale_bytes = block_scale_bytes(form->scale), num_factors = form->num_factors;
  memcpy(to + scale_bytes * output, raw + from->scale_byte, (size_t)scale_bytes);
  if (form->has_minimum) memcpy(to + part->minimum_at + 2 * output, raw + from->minimum_byte, 2);
  if (form->has_zero) to[part->zero_at + output] = raw[from->zero_byte];
  uint8_t *group = to + part->groups_at;
  PRAGMA(GCC unroll 8) for (int g = 0; g < form->groups; g++, group += part->group_bytes) {
    for (int f = 0; f < num_factors * (1 + form->has_minimum); f++) {
      const int of_minima = f >= num_factors ? form->groups * num_factors - num_factors : 0;
      group[BLOCK_SIZE * f + output] = (uint8_t)block_factor_at(raw, from, g * num_factors + f + of_minima);
    }
    block_sixteen halves[2];
    for (int half = 0; half < 2; half++) {
      const int first = BLOCK_SIZE * g + 16 * half;
      halves[half] = block_fields(raw, from->low, first) ^ (uint8_t)from->flip;
      if (from->high.stretch) halves[half] |= block_fields(raw, from->high, first) << from->low.num_bits;
    }
    block_put_codes(group + part->codes_at + 4 * output, halves, form->bits);
  }
}

typedef struct {
  const block_part *part;
  const uint8_t *rows;
  int64_t first_row, num_rows, row_bytes;
} block_packing;

static const uint8_t block_zeros[512]; /* more than a unit in a file has */

/* Packs the rows of a block; with the segment's last row also the block's other outputs, as zeros. */
INLINE void block_pack_block(const block_packing *packing, int64_t block, const block_form *form, const block_source *from) {
  const block_part *part = packing->part;
  const int64_t first = block * BLOCK_SIZE, begin = packing->first_row > first ? packing->first_row - first : 0;
  const int64_t last = packing->first_row + packing->num_rows - first, end = last < BLOCK_SIZE ? last : BLOCK_SIZE;
  uint8_t *to = (uint8_t *)part->weight + block * part->num_units * part->unit_bytes;
  const int64_t beyond = last == part->outputs - first ? BLOCK_SIZE : end;
  const int64_t raw_bytes = packing->row_bytes / part->num_units, stretch = 1 + BLOCK_PACKED_AT_ONCE / part->unit_bytes;
  for (int64_t unit = 0; unit < part->num_units; unit += stretch)
    for (int64_t output = begin; output < beyond; output++) {
      const int64_t row = first + output - packing->first_row, next = output < end ? raw_bytes : 0;
      const uint8_t *raw = output < end ? packing->rows + row * packing->row_bytes + unit * raw_bytes : block_zeros;
      uint8_t *mine = to + unit * part->unit_bytes;
      for (int64_t i = unit; i < unit + stretch && i < part->num_units; i++, raw += next, mine += part->unit_bytes)
        block_pack_unit(part, form, from, raw, mine, (int)output);
    }
}

static void block_pack_item(const void *data, int64_t item) {
  const block_packing *packing = data;
  const int64_t block = packing->first_row / BLOCK_SIZE + item;
#define FORM(number) \
  case number: block_pack_block(packing, block, block_forms + number, block_sources + number); break;
  switch (packing->part->number) { BLOCK_STORED_FORMS(FORM) }
#undef FORM
}

/* A code of a group as an integer; `codes`: an output's, with 4 bits per word of inputs. */
INLINE int block_code(const block_part *part, const uint8_t *codes, int input) {
  const block_form *form = &part->form;
  const int four = input / 4, byte = input % 4;
  if (form->bits == 8) return codes[four * BLOCK_FOUR + byte];
  const int low = codes[four % 4 * BLOCK_FOUR + byte] >> four / 4 * 4 & 15;
  if (form->table) return part->table[low];
  if (form->bits == 5) return low | (codes[4 * BLOCK_FOUR + byte] >> four & 1) << 4;
  if (form->bits == 6) return low | (codes[(4 + four / 4) * BLOCK_FOUR + byte] >> four % 4 * 2 & 3) << 4;
  return low;
}

INLINE float block_float16_at(const uint8_t *from) {
  uint16_t x;
  memcpy(&x, from, sizeof x);
  return widen_float16(x);
}

INLINE float block_scale_at(const uint8_t *unit, int scale, int output) {
  uint16_t half;
  float whole;
  memcpy(&half, unit + 2 * output, sizeof half);
  memcpy(&whole, unit + 4 * output, sizeof whole);
  return scale == BLOCK_F16 ? widen_float16(half) : scale == BLOCK_BF16 ? widen_bfloat16(half) : scale == BLOCK_F32 ? whole
                                                                                             : widen_e8m0(unit[output]);
}

/* Sets `values` to 32 weights of an output. */
INLINE void block_values(const block_part *part, const uint8_t *unit, const uint8_t *group, int output, float *values) {
  const block_form *form = &part->form;
  const int num_factors = form->num_factors, has_minimum = form->has_minimum | form->has_zero;
  const float unit_scale = block_scale_at(unit, form->scale, output);
  const float unit_minimum = form->has_minimum ? block_float16_at(unit + part->minimum_at + 2 * output)
                             : form->has_zero  ? -unit_scale * (float)unit[part->zero_at + output]
                                               : 0.0f;
  for (int input = 0; input < BLOCK_SIZE; input++) {
    const int8_t *factor = (const int8_t *)group + BLOCK_SIZE * (num_factors == 2 ? input / 16 : 0) + output;
    const float scale = num_factors ? unit_scale * *factor : unit_scale;
    const float minimum = num_factors && has_minimum ? -unit_minimum * factor[BLOCK_SIZE * num_factors] : unit_minimum;
    const float value = scale * (float)(block_code(part, group + part->codes_at + 4 * output, input) - form->offset);
    values[input] = has_minimum ? value + minimum : value;
  }
}

typedef struct {
  const block_part *parts;
  const int32_t *rows;
  void *out;
  int64_t inputs;
} block_reading;
#endif

#if !IS_BFLOAT16
PUBLIC int NAME(pack_blocks)(const NAME(pack_blocks_arguments) *of) {
  if (of->num_rows == 0) return 0;
  block_part parts[BLOCK_MOST_SEGMENTS];
  block_parts(of->weight, of->segments, of->segment + 1, of->inputs, parts);
  const block_packing packing = {parts + of->segment, of->rows, of->first_row, of->num_rows, of->row_bytes};
  const int64_t num_blocks = (of->first_row + of->num_rows - 1) / BLOCK_SIZE - of->first_row / BLOCK_SIZE + 1;
  run_items(num_blocks, of->num_rows * of->inputs, block_pack_item, &packing);
  return 0;
}
#endif

static void NAME(block_read_row)(const void *data, int64_t item) {
  const block_reading *reading = data;
  const block_part *part = reading->parts;
  int64_t row = reading->rows[item];
  for (; row >= part->outputs; part++) row -= part->outputs;
  const uint8_t *unit = part->weight + row / BLOCK_SIZE * part->num_units * part->unit_bytes;
  element *out = (element *)reading->out + item * reading->inputs;
  for (int64_t begin = 0; begin < reading->inputs; unit += part->unit_bytes) {
    const uint8_t *group = unit + part->groups_at;
    for (int g = 0; g < part->form.groups; g++, begin += BLOCK_SIZE, group += part->group_bytes) {
      float values[BLOCK_SIZE];
      block_values(part, unit, group, (int)(row % BLOCK_SIZE), values);
      for (int64_t i = 0; i < BLOCK_SIZE && begin + i < reading->inputs; i++) out[begin + i] = NARROW(values[i]);
    }
  }
}

PUBLIC int NAME(look_up_blocks)(const NAME(look_up_blocks_arguments) *of) {
  block_part parts[BLOCK_MOST_SEGMENTS];
  block_parts(of->weight, of->segments, of->num_segments, of->inputs, parts);
  const block_reading reading = {parts, of->rows, of->out, of->inputs};
  run_items(of->num_rows, of->num_rows * of->inputs, NAME(block_read_row), &reading);
  return 0;
}
