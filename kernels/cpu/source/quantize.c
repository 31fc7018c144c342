/* Quantizes a weight: see kernels/operations/quantize.py. */

#ifndef SLUICE_QUANTIZE
#define SLUICE_QUANTIZE
/* With 4 bits groups are those of block_layout.h, and each has its scales. */
INLINE int quantize_group(const int bits) { return bits == 4 ? 32 : QUANT_GROUP; }
INLINE int64_t quantize_scale_bytes(int bits, int of) { return bits == of ? QUANT_SCALE_BYTES : 0; }
INLINE int64_t quantize_group_bytes(int bits) {
  return quantize_scale_bytes(bits, 4) + quantize_group(bits) * QUANT_BLOCK * bits / 8;
}
INLINE int64_t quantize_block_bytes(int bits, int64_t num_groups) {
  return quantize_scale_bytes(bits, 8) + num_groups * quantize_group_bytes(bits);
}

typedef struct {
  const void *weight, *largest;
  uint8_t *packed;
  int64_t outputs, inputs, num_groups;
  int bits;
} quantize_call;

/* Returns the scale for codes of `bits` bits if `extreme` has the largest magnitude: with 4 bits it becomes -8, whatever its
   sign. */
INLINE uint16_t quantize_scale(float extreme, const int bits) {
  return narrow_bfloat16(bits == 4 ? extreme / -8.0f : fabsf(extreme) / 127.0f);
}

/* Returns the first value of the largest magnitude. */
INLINE float quantize_extreme(const float *values, const int size) {
  float largest = 0.0f;
  _Pragma("omp simd reduction(max : largest)") for (int i = 0; i < size; i++) {
    const float magnitude = fabsf(values[i]);
    largest = magnitude > largest ? magnitude : largest;
  }
  int first = 0;
  while (first < size - 1 && fabsf(values[first]) != largest) first++;
  return values[first];
}

/* Writes the codes of one output of a group. */
INLINE void quantize_values(const float *values, uint16_t scale, uint8_t *place, const int bits) {
  const int size = quantize_group(bits);
  const float to_integer = 12582912.0f, lowest = bits == 4 ? -8.0f : -127.0f, highest = bits == 4 ? 7.0f : 127.0f;
  const float wide = widen_bfloat16(scale), divisor = wide != 0.0f ? wide : 1.0f;
  uint8_t codes[QUANT_GROUP];
  SIMD for (int i = 0; i < size; i++) {
    float code = values[i] / divisor;
    code = code < lowest ? lowest : code > highest ? highest : code;
    codes[i] = (uint8_t)(bits_of(code + to_integer) + (bits == 4 ? 8u : 128u));
  }
  for (int i = 0; i < size * bits / 8; i += 4, place += 4 * QUANT_BLOCK) {
    uint32_t four, more = 0;
    memcpy(&four, codes + i, sizeof four);
    if (bits == 4) memcpy(&more, codes + i + 16, sizeof more);
    four |= more << 4;
    memcpy(place, &four, sizeof four);
  }
}
#endif

/* Sets `values` to an output's values of a group; outputs and inputs beyond the last are zeros. */
INLINE void NAME(quantize_load)(const quantize_call *call, int64_t output, int64_t group, float *values, const int size) {
  const int64_t begin = group * size, left = call->inputs - begin;
  const int num_inputs = output >= call->outputs ? 0 : left < size ? (int)left : size;
  const element *from = (const element *)call->weight + output * call->inputs + begin;
  for (int i = 0; i < size; i++) values[i] = i < num_inputs ? WIDEN(from[i]) : 0.0f;
}

/* One output of a block: with 4 bits each group has a scale, with 8 bits all groups share one. */
INLINE void NAME(quantize_output)(const quantize_call *call, int64_t block, int output, const int bits) {
  const int64_t row = block * QUANT_BLOCK + output;
  const int size = quantize_group(bits);
  uint8_t *const begin = call->packed + block * quantize_block_bytes(bits, call->num_groups);
  float values[QUANT_GROUP], extremes[QUANT_GROUP] = {0};
  uint16_t scale = 0;
  if (call->largest && row < call->outputs) extremes[0] = WIDEN(((const element *)call->largest)[row]);
  for (int64_t group = 0; bits == 8 && group < call->num_groups; group++) {
    NAME(quantize_load)(call, row, group, values, size);
    SIMD for (int i = 0; i < size; i++) extremes[i] = fabsf(values[i]) > extremes[i] ? fabsf(values[i]) : extremes[i];
  }
  if (bits == 8) {
    scale = quantize_scale(quantize_extreme(extremes, size), bits);
    memcpy(begin + 2 * output, &scale, sizeof scale);
  }
  for (int64_t group = 0; group < call->num_groups; group++) {
    uint8_t *to = begin + quantize_scale_bytes(bits, 8) + group * quantize_group_bytes(bits);
    NAME(quantize_load)(call, row, group, values, size);
    if (bits == 4) {
      scale = quantize_scale(quantize_extreme(values, size), bits);
      memcpy(to + 2 * output, &scale, sizeof scale);
    }
    quantize_values(values, scale, to + quantize_scale_bytes(bits, 4) + 4 * output, bits);
  }
}

static void NAME(quantize_block)(const void *data, int64_t block) {
  const quantize_call *call = data;
  for (int output = 0; output < QUANT_BLOCK; output++)
    if (call->bits == 4)
      NAME(quantize_output)(call, block, output, 4);
    else
      NAME(quantize_output)(call, block, output, 8);
}

PUBLIC int NAME(quantize)(const NAME(quantize_arguments) *of) {
  const int size = quantize_group((int)of->bits);
  const quantize_call call = {of->weight, of->largest, of->packed, of->outputs, of->inputs, (of->inputs + size - 1) / size, (int)of->bits};
  run_items((of->outputs + QUANT_BLOCK - 1) / QUANT_BLOCK, of->outputs * of->inputs, NAME(quantize_block), &call);
  return 0;
}
