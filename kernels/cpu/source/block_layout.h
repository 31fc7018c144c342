/* Weights in block forms: see kernels/arguments/packed_forms.py, which describes the layout and owns the table of forms. */
#ifndef SLUICE_BLOCK_LAYOUT
#define SLUICE_BLOCK_LAYOUT

/* Outputs of a block and inputs of a group; bytes of four inputs of a block. */
enum { BLOCK_SIZE = 32, BLOCK_FOUR = 4 * BLOCK_SIZE };
enum { BLOCK_MOST_SEGMENTS = 8 };

/* The fields of PackedForm. */
typedef struct {
  int32_t bits, offset, scale, groups, has_minimum, has_zero, num_factors, table;
} block_form;

/* The fields of Bits; without a stretch there are none. */
typedef struct {
  int32_t first_byte, num_bits, stretch;
} block_bits;

/* How a file stores a unit of a form: the fields of BlockForm. `flip` makes signed codes unsigned. */
typedef struct {
  int32_t scale_byte, minimum_byte, zero_byte, flip, factor_offset, has_six_bits;
  block_bits low, high, low_factors, high_factors;
} block_source;

#include "block_forms.h" /* written by ../headers.py: block_forms, block_sources, block_tables */

/* A segment of a weight: its outputs, and the number of its form. */
typedef struct {
  int32_t outputs, form;
} block_segment;

/* A segment with its place in a weight and in an output row. Offsets are in bytes: of a unit's minima and zero points, of its
   first group, and of a group's codes. */
typedef struct {
  block_form form;
  int32_t number; /* of the form */
  const uint8_t *weight, *table;
  int64_t outputs, first_output, first_block, num_blocks, num_units;
  int64_t minimum_at, zero_at, groups_at, codes_at, group_bytes, unit_bytes;
} block_part;

INLINE int block_scale_bytes(int scale) { return scale == BLOCK_F32 ? 4 : scale == BLOCK_E8M0 ? 1 : 2; }

/* Fills `parts` from a weight's segments; returns the number of blocks. */
static int64_t block_parts(const uint8_t *weight, const block_segment *segments, int64_t num_segments, int64_t inputs,
                           block_part *parts) {
  int64_t first_output = 0, first_block = 0;
  for (int64_t s = 0; s < num_segments; s++) {
    block_form form = block_forms[segments[s].form];
    if (form.groups == 0) form.groups = (int32_t)((inputs + QUANT_GROUP - 1) / QUANT_GROUP * (QUANT_GROUP / BLOCK_SIZE));
    block_part part = {.form = form, .number = segments[s].form, .weight = weight, .outputs = segments[s].outputs,
                       .first_output = first_output, .first_block = first_block};
    part.table = block_tables[form.table ? form.table - 1 : 0];
    part.num_blocks = (part.outputs + BLOCK_SIZE - 1) / BLOCK_SIZE;
    part.num_units = (inputs + form.groups * BLOCK_SIZE - 1) / (form.groups * BLOCK_SIZE);
    part.minimum_at = BLOCK_SIZE * block_scale_bytes(form.scale);
    part.zero_at = part.minimum_at + 2 * BLOCK_SIZE * form.has_minimum;
    part.groups_at = part.zero_at + BLOCK_SIZE * form.has_zero;
    part.codes_at = BLOCK_SIZE * form.num_factors * (1 + form.has_minimum);
    part.group_bytes = part.codes_at + BLOCK_SIZE * BLOCK_SIZE / 8 * form.bits;
    part.unit_bytes = part.groups_at + form.groups * part.group_bytes;
    parts[s] = part;
    first_output += part.outputs;
    first_block += part.num_blocks;
    weight += part.num_blocks * part.num_units * part.unit_bytes;
  }
  return first_block;
}

INLINE float widen_e8m0(uint8_t x) { return float_of(x < 2 ? 0x200000u << x : (uint32_t)(x - 1) << 23); }

/* The numbers of a vector of outputs. */
INLINE quant_floats block_float16(const uint8_t *x) {
#if QUANT_LANES == 8
  return (quant_floats)_mm256_cvtph_ps(_mm_loadu_si128((const void *)x));
#elif defined(__AVX512F__)
  return (quant_floats)_mm512_cvtph_ps(_mm256_loadu_si256((const void *)x));
#else
  quant_floats wide;
  for (int i = 0; i < QUANT_LANES; i++) wide[i] = widen_float16(((const uint16_t *)(const void *)x)[i]);
  return wide;
#endif
}

INLINE quant_floats block_bfloat16(const uint8_t *x) {
#if defined(__AVX512F__)
  return (quant_floats)widen_vector(_mm256_loadu_si256((const void *)x));
#else
  return quant_scales(x);
#endif
}

INLINE quant_floats block_signed(const uint8_t *x) {
  quant_floats wide;
#if QUANT_LANES == 8
  wide = (quant_floats)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)x)));
#elif defined(__AVX512F__)
  wide = (quant_floats)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)x)));
#else
  for (int i = 0; i < QUANT_LANES; i++) wide[i] = (int8_t)x[i];
#endif
  return wide;
}

INLINE quant_floats block_unsigned(const uint8_t *x) {
  quant_floats wide;
  for (int i = 0; i < QUANT_LANES; i++) wide[i] = x[i];
  return wide;
}

INLINE quant_floats block_e8m0(const uint8_t *x) {
#if QUANT_LANES == 8
  const __m256i wide = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)x));
  const __m256i large = _mm256_slli_epi32(_mm256_sub_epi32(wide, _mm256_set1_epi32(1)), 23);
  const __m256i small = _mm256_sllv_epi32(_mm256_set1_epi32(0x200000), wide);
  return (quant_floats)_mm256_blendv_epi8(large, small, _mm256_cmpgt_epi32(_mm256_set1_epi32(2), wide));
#elif defined(__AVX512F__)
  const __m512i wide = _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)x));
  const __m512i large = _mm512_slli_epi32(_mm512_sub_epi32(wide, _mm512_set1_epi32(1)), 23);
  const __mmask16 is_small = _mm512_cmplt_epu32_mask(wide, _mm512_set1_epi32(2));
  return (quant_floats)_mm512_mask_sllv_epi32(large, is_small, _mm512_set1_epi32(0x200000), wide);
#else
  quant_floats wide;
  for (int i = 0; i < QUANT_LANES; i++) wide[i] = widen_e8m0(x[i]);
  return wide;
#endif
}

/* The scales of a unit for a vector of outputs. */
INLINE quant_floats block_scale(const block_part *part, const uint8_t *unit, int output) {
  switch (part->form.scale) {
    case BLOCK_F16: return block_float16(unit + 2 * output);
    case BLOCK_BF16: return block_bfloat16(unit + 2 * output);
    case BLOCK_F32: return *(const quant_floats *)(const void *)(unit + 4 * output);
  }
  return block_e8m0(unit + output);
}

/* Sets the scales and the minima, 0 if the form has none, of a group for a vector of outputs: of all inputs or of each half. */
INLINE void block_scales(const block_part *part, const uint8_t *unit, const uint8_t *group, int output, const int halves,
                         quant_floats *scales, quant_floats *minima) {
  const quant_floats scale = block_scale(part, unit, output);
  const int num_factors = part->form.num_factors;
  for (int half = 0; half < halves; half++) {
    scales[half] = scale, minima[half] = (quant_floats){0};
    if (num_factors) scales[half] *= block_signed(group + BLOCK_SIZE * half + output);
  }
  if (part->form.has_zero) minima[0] = -scale * block_unsigned(unit + part->zero_at + output);
  if (!part->form.has_minimum) return;
  const quant_floats minimum = block_float16(unit + part->minimum_at + 2 * output);
  for (int half = 0; half < halves; half++) {
    minima[half] = minimum;
    if (num_factors) minima[half] *= -block_signed(group + BLOCK_SIZE * (num_factors + half) + output);
  }
}
#endif
