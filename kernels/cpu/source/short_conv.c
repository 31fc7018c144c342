/* The causal depthwise convolution over the last few tokens of a sequence: see kernels/operations/short_conv.py. */

#ifndef SLUICE_SHORT_CONV
#define SLUICE_SHORT_CONV
/* The channels of an item, and how many of a row's tokens are read before the first is computed. */
enum { CONV_CHANNELS = 128, CONV_TOKENS = 16, MOST_TAPS = 8 };

typedef float conv_channels[CONV_CHANNELS];
#endif

/* x * sigmoid(x) */
INLINE void NAME(activate)(conv_channels x) {
#if IS_BFLOAT16 && defined(__AVX512BF16__)
  for (int64_t c = 0; c < CONV_CHANNELS; c += 16) _mm512_storeu_ps(x + c, silu_vector(_mm512_loadu_ps(x + c)));
#else
  SIMD for (int64_t c = 0; c < CONV_CHANNELS; c++) x[c] = times_sigmoid(x[c], -LOG2_E * x[c]);
#endif
}

/* Reads what the convolution has of a token. */
INLINE void NAME(load_input)(const NAME(short_conv_arguments) *of, int64_t token, int64_t first, int64_t size, float *out) {
  const element *input = of->input + token * of->stride + first, *x = input + 2 * of->num_channels;
  if (of->is_gated) SIMD for (int64_t c = 0; c < size; c++) out[c] = WIDEN(NARROW(WIDEN(input[c]) * WIDEN(x[c])));
  else SIMD for (int64_t c = 0; c < size; c++) out[c] = WIDEN(input[c]);
}

/* Writes a token's result; `window` has its `taps` inputs. */
INLINE void NAME(convolve)(const NAME(short_conv_arguments) *of, int64_t token, int64_t first, int64_t size, int64_t taps,
                           const conv_channels *weight, const float *bias, const conv_channels *window) {
  const element *gate = of->input + token * of->stride + of->num_channels + first;
  element *out = of->out + token * of->num_channels + first;
  conv_channels sum;
  for (int64_t c = 0; c < CONV_CHANNELS; c++) sum[c] = bias[c];
  for (int64_t k = 0; k < taps; k++)
    for (int64_t c = 0; c < CONV_CHANNELS; c++) sum[c] += weight[k][c] * window[k][c];
  if (of->is_gated) SIMD for (int64_t c = 0; c < size; c++) sum[c] *= WIDEN(gate[c]);
  else NAME(activate)(sum);
  SIMD for (int64_t c = 0; c < size; c++) out[c] = NARROW(sum[c]);
}

/* Tails of many rows come from outside of a core's caches. */
INLINE void NAME(prefetch_tail)(const NAME(short_conv_arguments) *of, int64_t slot, int64_t first, int64_t size, int64_t num_before) {
  enum { LINE = 64 / sizeof(element) };
  const element *tail = of->tail + slot * num_before * of->num_channels + first;
  for (int64_t j = 0; slot >= 0 && j < num_before; j++)
    for (int64_t c = 0; c < size; c += LINE) __builtin_prefetch(tail + j * of->num_channels + c);
}

/* Computes all rows for some channels. `size` and `taps` are constants of most models, and then of the compiler. */
INLINE void NAME(convolve_channels)(const NAME(short_conv_arguments) *of, int64_t first, int64_t size, int64_t taps) {
  const int64_t num_channels = of->num_channels, num_before = taps - 1;
  const int64_t num_rows = of->rows.num_decode_rows + of->rows.num_prefill_rows;
  const element *weights = of->weight + first * taps;
  conv_channels weight[MOST_TAPS], bias, inputs[CONV_TOKENS + MOST_TAPS - 1];
  if (size < CONV_CHANNELS) memset(weight, 0, sizeof weight), memset(inputs, 0, sizeof inputs); /* all are computed */
  memset(bias, 0, sizeof bias);
  for (int64_t c = 0; c < size; c++)
    for (int64_t k = 0; k < taps; k++) weight[k][c] = WIDEN(weights[c * taps + k]);
  if (of->bias) SIMD for (int64_t c = 0; c < size; c++) bias[c] = WIDEN(of->bias[first + c]);
  for (int64_t row = 0, token = 0; row < num_rows; row++) {
    const state_row now = find_state_row(&of->rows, row, token);
    const element *before = of->tail + now.source * num_before * num_channels + first;
    for (int64_t j = 0; j < num_before; j++)
      for (int64_t c = 0; c < size; c++) inputs[j][c] = now.source < 0 ? 0.0f : WIDEN(before[j * num_channels + c]);
    if (row + 1 < num_rows) NAME(prefetch_tail)(of, find_state_row(&of->rows, row + 1, now.end).source, first, size, num_before);
    while (token < now.end) {
      const int64_t count = now.end - token < CONV_TOKENS ? now.end - token : CONV_TOKENS;
      for (int64_t i = 0; i < count; i++) NAME(load_input)(of, token + i, first, size, inputs[num_before + i]);
      for (int64_t i = 0; i < count; i++, token++) {
        const int64_t slot = of->rows.slots[token];
        NAME(convolve)(of, token, first, size, taps, (const conv_channels *)weight, bias, (const conv_channels *)inputs + i);
        if (slot < 0) continue;
        element *after = of->tail + slot * num_before * num_channels + first;
        for (int64_t j = 0; j < num_before; j++)
          SIMD for (int64_t c = 0; c < size; c++) after[j * num_channels + c] = NARROW(inputs[i + 1 + j][c]);
      }
      memmove(inputs, inputs + count, (size_t)num_before * sizeof *inputs);
    }
  }
}

static void NAME(convolve_item)(const void *data, int64_t item) {
  const NAME(short_conv_arguments) *of = data;
  const int64_t first = item * CONV_CHANNELS, rest = of->num_channels - first;
  if (rest < CONV_CHANNELS) NAME(convolve_channels)(of, first, rest, of->num_taps);
  else if (of->num_taps == 4) NAME(convolve_channels)(of, first, CONV_CHANNELS, 4);
  else NAME(convolve_channels)(of, first, CONV_CHANNELS, of->num_taps);
}

ITEM_OPERATION(short_conv, short_conv_arguments, (of->num_channels + CONV_CHANNELS - 1) / CONV_CHANNELS,
               count_row_tokens(&of->rows) * of->num_channels * 4, convolve_item)
