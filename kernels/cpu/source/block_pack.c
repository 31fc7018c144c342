/* Lays a file's rows in block forms out for block_linear.c, and reads rows back: see kernels/operations/block_linear.py. */

#ifndef SLUICE_BLOCK_PACK
#define SLUICE_BLOCK_PACK
enum { BLOCK_SIMPLE, BLOCK_Q45_K, BLOCK_Q6_K, BLOCK_IQ4_XS, BLOCK_Q23_K };

/* Bytes of a block whose outputs a thread packs one after another: they stay in its nearest cache. */
enum { BLOCK_PACKED_AT_ONCE = 16 << 10 };

typedef uint8_t block_sixteen __attribute__((vector_size(16), aligned(1), may_alias));
typedef uint32_t block_words __attribute__((vector_size(16), aligned(1), may_alias));

/* Writes `count` four-byte words of an output's codes, each of them at its place of a block. */
INLINE void block_put_words(uint8_t *codes, const uint8_t *words, const int count) {
  for (int i = 0; i < count; i++) memcpy(codes + i * BLOCK_FOUR, words + 4 * i, 4);
}

/* Writes 4-bit codes, which are bytes here; only the low half of a byte counts. */
INLINE void block_put_nibbles(uint8_t *codes, block_sixteen first, block_sixteen second) {
  const block_sixteen both = (first & 15) | second << 4;
  block_put_words(codes, (const uint8_t *)&both, 4);
}

INLINE block_sixteen block_sixteen_at(const uint8_t *bytes) { return *(const block_sixteen *)bytes; }

INLINE uint32_t block_union(block_words x) { return (x[0] | x[1]) | (x[2] | x[3]); }

/* Writes the fifth bits: of input 4 * four + byte, the bit `four` of the byte. `bits`: the bit of input i is bit i. */
INLINE void block_put_fifth(uint8_t *plane, uint32_t bits) {
  block_words x = ((block_words){bits, bits, bits, bits} >> (block_words){0, 1, 2, 3}) & 0x11111111u;
  x = (x | x >> 3) & 0x03030303u;
  x = (x | x >> 6) & 0x000f000fu;
  x = (x | x >> 12) & 0xffu;
  const uint32_t all = block_union(x << (block_words){0, 8, 16, 24});
  memcpy(plane, &all, sizeof all);
}

/* Packs a unit of an output: `to` is the unit in its block. */
INLINE void block_pack_simple(const block_part *part, const uint8_t *raw, uint8_t *to, int output) {
  const block_segment *form = &part->form;
  const int scale_bytes = block_scale_bytes(form->scale);
  memcpy(to + scale_bytes * output, raw, (size_t)scale_bytes);
  raw += scale_bytes;
  if (form->has_minimum) memcpy(to + part->minimum_at + 2 * output, raw, 2), raw += 2;
  if (form->has_zero) to[part->zero_at + output] = *raw++;
  uint8_t *codes = to + part->groups_at + 4 * output;
  for (int g = 0; g < form->groups; g++, codes += part->group_bytes) {
    if (form->bits == 5) {
      uint32_t bits;
      memcpy(&bits, raw, sizeof bits);
      block_put_fifth(codes + 4 * BLOCK_FOUR, bits);
      raw += 4;
    }
    if (form->bits < 8) {
      block_put_words(codes, raw, 4);
      raw += 16;
    } else {
      const uint8_t flip = form->has_zero ? 0 : 128;
      const block_sixteen bytes[2] = {block_sixteen_at(raw) ^ flip, block_sixteen_at(raw + 16) ^ flip};
      block_put_words(codes, (const uint8_t *)bytes, 8);
      raw += 32;
    }
  }
}

/* Two float16, 8 scales and 8 minima of 6 bits in 12 bytes; with 5 bits, 32 bytes of fifth bits; 128 bytes of 4-bit codes. */
INLINE void block_pack_q45_k(const block_part *part, const uint8_t *raw, uint8_t *to, int output) {
  const uint8_t *factors = raw + 4, *high = raw + 16, *low = part->form.bits == 5 ? high + 32 : high;
  memcpy(to + 2 * output, raw, 2);
  memcpy(to + part->minimum_at + 2 * output, raw + 2, 2);
  uint8_t *group = to + part->groups_at;
  for (int g = 0; g < 8; g++, group += part->group_bytes) {
    const int f = g % 4;
    const uint8_t scale = g < 4 ? factors[f] & 63 : (factors[8 + f] & 15) | factors[f] >> 6 << 4;
    const uint8_t minimum = g < 4 ? factors[4 + f] & 63 : factors[8 + f] >> 4 | factors[4 + f] >> 6 << 4;
    group[output] = scale, group[BLOCK_SIZE + output] = minimum;
    uint8_t *codes = group + part->codes_at + 4 * output;
    const block_sixteen first = block_sixteen_at(low + g / 2 * 32), second = block_sixteen_at(low + g / 2 * 32 + 16);
    block_put_nibbles(codes, g % 2 ? first >> 4 : first, g % 2 ? second >> 4 : second);
    if (part->form.bits != 5) continue;
    const block_words lower = *(const block_words *)high >> g & 0x01010101u;
    const block_words upper = *(const block_words *)(high + 16) >> g & 0x01010101u;
    const uint32_t all = block_union(lower << (block_words){0, 1, 2, 3} | upper << (block_words){4, 5, 6, 7});
    memcpy(codes + 4 * BLOCK_FOUR, &all, sizeof all);
  }
}

/* 128 bytes of the lower 4 bits, 64 bytes of the upper 2, 16 scales of 8 bits, a float16. */
INLINE void block_pack_q6_k(const block_part *part, const uint8_t *raw, uint8_t *to, int output) {
  memcpy(to + 2 * output, raw + 208, 2);
  uint8_t *group = to + part->groups_at;
  for (int g = 0; g < 8; g++, group += part->group_bytes) {
    const uint8_t *low = raw + g / 4 * 64 + g % 2 * 32, *high = raw + 128 + g / 4 * 32;
    const int shift = g % 4 / 2 * 4;
    group[output] = raw[192 + 2 * g], group[BLOCK_SIZE + output] = raw[193 + 2 * g];
    uint8_t *codes = group + part->codes_at + 4 * output;
    block_put_nibbles(codes, block_sixteen_at(low) >> shift, block_sixteen_at(low + 16) >> shift);
    for (int half = 0; half < 2; half++) {
      const block_words two = *(const block_words *)(high + 16 * half) >> g % 4 * 2 & 0x03030303u;
      const uint32_t all = block_union(two << (block_words){0, 2, 4, 6});
      memcpy(codes + (4 + half) * BLOCK_FOUR, &all, sizeof all);
    }
  }
}

/* A float16, the upper 2 bits of 8 scales in 2 bytes, the lower 4 in 4 bytes, and 4-bit codes. */
INLINE void block_pack_iq4_xs(const block_part *part, const uint8_t *raw, uint8_t *to, int output) {
  memcpy(to + 2 * output, raw, 2);
  uint8_t *group = to + part->groups_at;
  for (int g = 0; g < 8; g++, group += part->group_bytes) {
    const int low = raw[4 + g / 2] >> g % 2 * 4 & 15, high = raw[2 + g / 4] >> g % 4 * 2 & 3;
    group[output] = (uint8_t)((low | high << 4) - 32);
    block_put_words(group + part->codes_at + 4 * output, raw + 8 + 16 * g, 4);
  }
}

/* Q2_K: 16 bytes of scales and minima of 4 bits, 64 bytes of 2-bit codes, two float16. Q3_K: 32 bytes of third bits, 64 bytes
   of 2-bit codes, 16 scales of 6 bits in 12 bytes, a float16. */
INLINE void block_pack_q23_k(const block_part *part, const uint8_t *raw, uint8_t *to, int output) {
  const int is_q2 = part->form.has_minimum;
  const uint8_t *two = raw + (is_q2 ? 16 : 32), *factors = is_q2 ? raw : raw + 96;
  memcpy(to + 2 * output, raw + (is_q2 ? 80 : 108), 2);
  if (is_q2) memcpy(to + part->minimum_at + 2 * output, raw + 82, 2);
  uint8_t *group = to + part->groups_at;
  for (int g = 0; g < 8; g++, group += part->group_bytes) {
    for (int f = 2 * g, half = 0; half < 2; f++, half++) {
      uint8_t *factor = group + BLOCK_SIZE * half + output;
      *factor = is_q2 ? factors[f] & 15
                      : (uint8_t)((factors[f % 8] >> f / 8 * 4 & 15) + (factors[8 + f % 4] >> f / 4 * 2 & 3) * 16 - 32);
      if (is_q2) factor[2 * BLOCK_SIZE] = factors[f] >> 4;
    }
    block_sixteen halves[2];
    for (int half = 0; half < 2; half++) {
      halves[half] = block_sixteen_at(two + g / 4 * 32 + 16 * half) >> g % 4 * 2 & 3;
      if (!is_q2) halves[half] |= (block_sixteen_at(raw + 16 * half) >> g & 1) << 2;
    }
    block_put_nibbles(group + part->codes_at + 4 * output, halves[0], halves[1]);
  }
}

typedef struct {
  const block_part *part;
  const uint8_t *rows;
  int64_t first_row, num_rows, row_bytes;
} block_packing;

static const uint8_t block_zeros[512]; /* more than a unit in a file has */

/* Packs the rows of a block; with the segment's last row also the block's other outputs, as zeros. */
INLINE void block_pack_block(const block_packing *packing, int64_t block, const int source) {
  const block_part *part = packing->part;
  const int64_t first = block * BLOCK_SIZE, begin = packing->first_row > first ? packing->first_row - first : 0;
  const int64_t last = packing->first_row + packing->num_rows - first, end = last < BLOCK_SIZE ? last : BLOCK_SIZE;
  uint8_t *to = (uint8_t *)part->weight + block * part->num_units * part->unit_bytes;
  const int64_t beyond = last == part->form.outputs - first ? BLOCK_SIZE : end;
  const int64_t raw_bytes = packing->row_bytes / part->num_units, stretch = 1 + BLOCK_PACKED_AT_ONCE / part->unit_bytes;
  for (int64_t unit = 0; unit < part->num_units; unit += stretch)
    for (int64_t output = begin; output < beyond; output++) {
      const int64_t row = first + output - packing->first_row, next = output < end ? raw_bytes : 0;
      const uint8_t *raw = output < end ? packing->rows + row * packing->row_bytes + unit * raw_bytes : block_zeros;
      uint8_t *mine = to + unit * part->unit_bytes;
      for (int64_t i = unit; i < unit + stretch && i < part->num_units; i++, raw += next, mine += part->unit_bytes) {
        if (source == BLOCK_SIMPLE) block_pack_simple(part, raw, mine, (int)output);
        if (source == BLOCK_Q45_K) block_pack_q45_k(part, raw, mine, (int)output);
        if (source == BLOCK_Q6_K) block_pack_q6_k(part, raw, mine, (int)output);
        if (source == BLOCK_IQ4_XS) block_pack_iq4_xs(part, raw, mine, (int)output);
        if (source == BLOCK_Q23_K) block_pack_q23_k(part, raw, mine, (int)output);
      }
    }
}

static void block_pack_item(const void *data, int64_t item) {
  const block_packing *packing = data;
  const int64_t block = packing->first_row / BLOCK_SIZE + item;
#define SOURCE(name) \
  case name: block_pack_block(packing, block, name); break;
  switch (packing->part->form.source) {
    SOURCE(BLOCK_SIMPLE) SOURCE(BLOCK_Q45_K) SOURCE(BLOCK_Q6_K) SOURCE(BLOCK_IQ4_XS) SOURCE(BLOCK_Q23_K)
  }
#undef SOURCE
}

/* A code of a group as an integer; `codes`: an output's, with 4 bits per word of inputs. */
INLINE int block_code(const block_part *part, const uint8_t *codes, int input) {
  const block_segment *form = &part->form;
  const int four = input / 4, byte = input % 4;
  if (form->bits == 8) return codes[four * BLOCK_FOUR + byte];
  const int low = codes[four % 4 * BLOCK_FOUR + byte] >> four / 4 * 4 & 15;
  if (form->table) return block_tables[form->table == BLOCK_MXFP4_VALUES][low];
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
  const block_segment *form = &part->form;
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
/* Packs rows [first_row, first_row + num_rows) of a segment; rows: [num_rows, row_bytes]. */
PUBLIC void NAME(pack_blocks)(uint8_t *weight, const block_segment *segments, const uint8_t *rows, int64_t segment,
                              int64_t first_row, int64_t num_rows, int64_t inputs, int64_t row_bytes) {
  if (num_rows == 0) return;
  block_part parts[BLOCK_MOST_SEGMENTS];
  block_parts(weight, segments, segment + 1, inputs, parts);
  const block_packing packing = {parts + segment, rows, first_row, num_rows, row_bytes};
  const int64_t num_blocks = (first_row + num_rows - 1) / BLOCK_SIZE - first_row / BLOCK_SIZE + 1;
  run_items(num_blocks, num_rows * inputs, block_pack_item, &packing);
}
#endif

static void NAME(block_read_row)(const void *data, int64_t item) {
  const block_reading *reading = data;
  const block_part *part = reading->parts;
  int64_t row = reading->rows[item];
  for (; row >= part->form.outputs; part++) row -= part->form.outputs;
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

/* Sets `out` [num_rows, inputs] to these rows of the weight. */
PUBLIC void NAME(look_up_blocks)(const uint8_t *weight, const block_segment *segments, const int32_t *rows, element *out,
                                 int64_t num_segments, int64_t num_rows, int64_t inputs) {
  block_part parts[BLOCK_MOST_SEGMENTS];
  block_parts(weight, segments, num_segments, inputs, parts);
  const block_reading reading = {parts, rows, out, inputs};
  run_items(num_rows, num_rows * inputs, NAME(block_read_row), &reading);
}
