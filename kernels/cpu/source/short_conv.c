/* The causal depthwise convolution over the last few tokens of a sequence: see kernels/operations/short_conv.py. */

#ifndef SLUICE_SHORT_CONV
#define SLUICE_SHORT_CONV
/* The channels of an item, and how many of a row's tokens are read before the first is computed. */
enum { CONV_CHANNELS = 128, CONV_TOKENS = 16, MOST_TAPS = 8 };

typedef float conv_channels[CONV_CHANNELS];
#endif

typedef struct {
  const element *input, *weight, *bias;
  element *tail, *out;
  state_rows rows;
  int64_t num_channels, num_taps, stride;
  int64_t is_gated;
} NAME(conv_call);

/* x * sigmoid(x) */
INLINE void NAME(activate)(conv_channels x) {
#if IS_BFLOAT16 && defined(__AVX512BF16__)
  for (int64_t c = 0; c < CONV_CHANNELS; c += 16) _mm512_storeu_ps(x + c, silu_vector(_mm512_loadu_ps(x + c)));
#else
  SIMD for (int64_t c = 0; c < CONV_CHANNELS; c++) {
    float power = -LOG2_E * x[c];
    power = power > 126.0f ? 126.0f : power;
    x[c] = x[c] / (1.0f + power_of_2(power));
  }
#endif
}

/* Reads what the convolution has of a token. */
INLINE void NAME(load_input)(const NAME(conv_call) *call, int64_t token, int64_t first, int64_t size, float *out) {
  const element *input = call->input + token * call->stride + first, *x = input + 2 * call->num_channels;
  if (call->is_gated) SIMD for (int64_t c = 0; c < size; c++) out[c] = WIDEN(NARROW(WIDEN(input[c]) * WIDEN(x[c])));
  else SIMD for (int64_t c = 0; c < size; c++) out[c] = WIDEN(input[c]);
}

/* Writes a token's result; `window` has its `taps` inputs. */
INLINE void NAME(convolve)(const NAME(conv_call) *call, int64_t token, int64_t first, int64_t size, int64_t taps,
                           const conv_channels *weight, const float *bias, const conv_channels *window) {
  const element *gate = call->input + token * call->stride + call->num_channels + first;
  element *out = call->out + token * call->num_channels + first;
  conv_channels sum;
  for (int64_t c = 0; c < CONV_CHANNELS; c++) sum[c] = bias[c];
  for (int64_t k = 0; k < taps; k++)
    for (int64_t c = 0; c < CONV_CHANNELS; c++) sum[c] += weight[k][c] * window[k][c];
  if (call->is_gated) SIMD for (int64_t c = 0; c < size; c++) sum[c] *= WIDEN(gate[c]);
  else NAME(activate)(sum);
  SIMD for (int64_t c = 0; c < size; c++) out[c] = NARROW(sum[c]);
}

/* Tails of many rows come from outside of a core's caches. */
INLINE void NAME(prefetch_tail)(const NAME(conv_call) *call, int64_t slot, int64_t first, int64_t size, int64_t num_before) {
  enum { LINE = 64 / sizeof(element) };
  const element *tail = call->tail + slot * num_before * call->num_channels + first;
  for (int64_t j = 0; slot >= 0 && j < num_before; j++)
    for (int64_t c = 0; c < size; c += LINE) __builtin_prefetch(tail + j * call->num_channels + c);
}

/* Computes all rows for some channels. `size` and `taps` are constants of most models, and then of the compiler. */
INLINE void NAME(convolve_channels)(const NAME(conv_call) *call, int64_t first, int64_t size, int64_t taps) {
  const int64_t num_channels = call->num_channels, num_before = taps - 1;
  const int64_t num_rows = call->rows.num_decode_rows + call->rows.num_prefill_rows;
  const element *weights = call->weight + first * taps;
  conv_channels weight[MOST_TAPS], bias, inputs[CONV_TOKENS + MOST_TAPS - 1];
  if (size < CONV_CHANNELS) memset(weight, 0, sizeof weight), memset(inputs, 0, sizeof inputs); /* all are computed */
  memset(bias, 0, sizeof bias);
  for (int64_t c = 0; c < size; c++)
    for (int64_t k = 0; k < taps; k++) weight[k][c] = WIDEN(weights[c * taps + k]);
  if (call->bias) SIMD for (int64_t c = 0; c < size; c++) bias[c] = WIDEN(call->bias[first + c]);
  for (int64_t row = 0, token = 0; row < num_rows; row++) {
    const state_row now = find_state_row(&call->rows, row, token);
    const element *before = call->tail + now.source * num_before * num_channels + first;
    for (int64_t j = 0; j < num_before; j++)
      for (int64_t c = 0; c < size; c++) inputs[j][c] = now.source < 0 ? 0.0f : WIDEN(before[j * num_channels + c]);
    if (row + 1 < num_rows) NAME(prefetch_tail)(call, find_state_row(&call->rows, row + 1, now.end).source, first, size, num_before);
    while (token < now.end) {
      const int64_t count = now.end - token < CONV_TOKENS ? now.end - token : CONV_TOKENS;
      for (int64_t i = 0; i < count; i++) NAME(load_input)(call, token + i, first, size, inputs[num_before + i]);
      for (int64_t i = 0; i < count; i++, token++) {
        const int64_t slot = call->rows.slots[token];
        NAME(convolve)(call, token, first, size, taps, (const conv_channels *)weight, bias, (const conv_channels *)inputs + i);
        if (slot < 0) continue;
        element *after = call->tail + slot * num_before * num_channels + first;
        for (int64_t j = 0; j < num_before; j++)
          SIMD for (int64_t c = 0; c < size; c++) after[j * num_channels + c] = NARROW(inputs[i + 1 + j][c]);
      }
      memmove(inputs, inputs + count, (size_t)num_before * sizeof *inputs);
    }
  }
}

static void NAME(convolve_item)(const void *data, int64_t item) {
  const NAME(conv_call) *call = data;
  const int64_t first = item * CONV_CHANNELS, rest = call->num_channels - first;
  if (rest < CONV_CHANNELS) NAME(convolve_channels)(call, first, rest, call->num_taps);
  else if (call->num_taps == 4) NAME(convolve_channels)(call, first, CONV_CHANNELS, 4);
  else NAME(convolve_channels)(call, first, CONV_CHANNELS, call->num_taps);
}

/* input: [num_tokens, num_channels or, gated, 3 * num_channels], rows that are `stride` elements apart; weight:
   [num_channels, num_taps]; bias: [num_channels], or null; tail: [slots, num_taps - 1, num_channels]; out: [num_tokens, num_channels].
   num_taps: at most MOST_TAPS. */
PUBLIC void NAME(short_conv)(const element *input, const element *weight, const element *bias, element *tail,
                             const int32_t *decode_sources, const int32_t *prefill_sources, const int32_t *prefill_lens,
                             const int32_t *slots, element *out, int64_t num_decode_rows, int64_t num_prefill_rows,
                             int64_t num_channels, int64_t num_taps, int64_t stride, int64_t is_gated) {
  const NAME(conv_call) call = {
      input, weight, bias, tail, out,
      {decode_sources, prefill_sources, prefill_lens, slots, num_decode_rows, num_prefill_rows},
      num_channels, num_taps, stride, is_gated};
  const int64_t num_items = (num_channels + CONV_CHANNELS - 1) / CONV_CHANNELS;
  run_items(num_items, count_row_tokens(&call.rows) * num_channels * 4, NAME(convolve_item), &call);
}
