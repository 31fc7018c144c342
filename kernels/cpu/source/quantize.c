/* Makes a quantized weight: kernels/quantized_linear.py says what it is and how it lies. */

#ifndef SLUICE_QUANTIZE
#define SLUICE_QUANTIZE
typedef struct {
  const void *weight;
  uint8_t *packed;
  int64_t outputs, inputs, num_groups;
  int bits;
} quantize_call;

/* Sets the codes of one output of a group; returns its scale. */
INLINE uint16_t quantize_values(const float *values, uint8_t *codes, const int bits) {
  const int size = quant_group(bits);
  const float to_integer = 12582912.0f, lowest = bits == 4 ? -8.0f : -127.0f, highest = bits == 4 ? 7.0f : 127.0f;
  float largest = 0.0f;
  _Pragma("omp simd reduction(max : largest)") for (int i = 0; i < size; i++) {
    const float magnitude = fabsf(values[i]);
    largest = magnitude > largest ? magnitude : largest;
  }
  float unit = largest / 127.0f;
  if (bits == 4) {
    /* The first of the largest becomes -8, whatever its sign. */
    int first = 0;
    while (first < size - 1 && fabsf(values[first]) != largest) first++;
    unit = values[first] / -8.0f;
  }
  const uint16_t scale = narrow_bfloat16(unit);
  const float wide = widen_bfloat16(scale), divisor = wide != 0.0f ? wide : 1.0f;
  SIMD for (int i = 0; i < size; i++) {
    float code = values[i] / divisor;
    code = code < lowest ? lowest : code > highest ? highest : code;
    codes[i] = (uint8_t)(bits_of(code + to_integer) + (bits == 4 ? 8u : 128u));
  }
  return scale;
}
#endif

/* One group of a block of 32 outputs; those beyond the end, and inputs beyond it, are zeros. */
INLINE void NAME(quantize_group)(const quantize_call *call, int64_t block, int64_t group, const int bits) {
  const int size = quant_group(bits);
  const int64_t begin = group * size, left = call->inputs - begin;
  uint8_t *to = call->packed + (block * call->num_groups + group) * quant_group_bytes(bits);
  for (int output = 0; output < QUANT_BLOCK; output++) {
    const int64_t row = block * QUANT_BLOCK + output;
    const int num_inputs = row >= call->outputs ? 0 : left < size ? (int)left : size;
    float values[QUANT_MOST_INPUTS] = {0};
    uint8_t codes[QUANT_MOST_INPUTS];
    const element *from = (const element *)call->weight + row * call->inputs + begin;
    for (int i = 0; i < num_inputs; i++) values[i] = WIDEN(from[i]);
    const uint16_t scale = quantize_values(values, codes, bits);
    memcpy(to + 2 * output, &scale, sizeof scale);
    uint8_t *place = to + 2 * QUANT_BLOCK + 4 * output;
    for (int i = 0; i < size; place += 4 * QUANT_BLOCK) {
      uint32_t four, more = 0;
      memcpy(&four, codes + i, sizeof four);
      if (bits == 4) memcpy(&more, codes + i + 4, sizeof more);
      four |= more << 4;
      memcpy(place, &four, sizeof four);
      i += bits == 4 ? 8 : 4;
    }
  }
}

static void NAME(quantize_block)(const void *data, int64_t block) {
  const quantize_call *call = data;
  for (int64_t group = 0; group < call->num_groups; group++)
    if (call->bits == 4)
      NAME(quantize_group)(call, block, group, 4);
    else
      NAME(quantize_group)(call, block, group, 8);
}

/* weight: [outputs, inputs], packed: [blocks, groups, group's bytes]. */
PUBLIC void NAME(quantize)(const element *weight, uint8_t *packed, int64_t outputs, int64_t inputs, int64_t bits) {
  const int64_t num_groups = (inputs + quant_group((int)bits) - 1) / quant_group((int)bits);
  quantize_call call = {weight, packed, outputs, inputs, num_groups, (int)bits};
  run_items((outputs + QUANT_BLOCK - 1) / QUANT_BLOCK, outputs * inputs, NAME(quantize_block), &call);
}
