/* GELU, squared ReLU and the gated activations: see kernels/operations/gelu.py,
   relu_squared.py, gelu_mul.py, silu_mul.py and swiglu_oai.py; and rescale.py. */

#ifndef SLUICE_ACTIVATIONS
#define SLUICE_ACTIVATIONS
/* How far ahead both halves of a row are prefetched, in bytes: with many rows they come from outside of a core's caches. */
enum { SILU_AHEAD = 4096 };
#endif

/* A GELU of `size` numbers, possibly in place. */
INLINE void NAME(gelu_row)(const NAME(gelu_arguments) *of, const element *x, element *out) {
  if (of->is_exact) SIMD for (int64_t i = 0; i < of->size; i++) out[i] = NARROW(gelu_exact(WIDEN(x[i])));
  else SIMD for (int64_t i = 0; i < of->size; i++) out[i] = NARROW(gelu_tanh(WIDEN(x[i])));
}

static void NAME(gelu_token)(const void *data, int64_t token) {
  const NAME(gelu_arguments) *of = data;
  NAME(gelu_row)(of, of->x + token * of->size, of->out + token * of->size);
}

static void NAME(relu_squared_token)(const void *data, int64_t token) {
  const NAME(gelu_arguments) *of = data;
  element *x = of->out + token * of->size;
  SIMD for (int64_t i = 0; i < of->size; i++) {
    float value = WIDEN(x[i]);
    value = value < 0.0f ? 0.0f : value; /* NaN stays NaN */
    x[i] = NARROW(value * value);
  }
}

static void NAME(silu_mul_token)(const void *data, int64_t token) {
  const NAME(gelu_arguments) *of = data;
  const int64_t size = of->size;
  const element *gate = of->x + 2 * token * size, *up = gate + size;
  element *out = of->out + token * size;
#if IS_BFLOAT16 && defined(__AVX512BF16__)
  for (int64_t i = 0; i < size; i += 16) {
    const __mmask16 lanes = lanes_of(size - i);
    __builtin_prefetch((const char *)(gate + i) + SILU_AHEAD);
    __builtin_prefetch((const char *)(up + i) + SILU_AHEAD);
    const __m512 activated = silu_vector(load_vector(gate + i, lanes));
    store_vector(out + i, lanes, _mm512_mul_ps(round_vector(activated), load_vector(up + i, lanes)));
  }
#else
  SIMD for (int64_t i = 0; i < size; i++) {
    const float x = WIDEN(gate[i]), activated = times_sigmoid(x, -LOG2_E * x);
    out[i] = NARROW(WIDEN(NARROW(activated)) * WIDEN(up[i]));
  }
#endif
}

static void NAME(gelu_mul_token)(const void *data, int64_t token) {
  const NAME(gelu_arguments) *of = data;
  const element *gate = of->x + (of->up ? 1 : 2) * token * of->size;
  const element *up = of->up ? of->up + token * of->up_stride : gate + of->size;
  element *out = of->out + token * of->size;
  NAME(gelu_row)(of, gate, out);
  SIMD for (int64_t i = 0; i < of->size; i++) out[i] = NARROW(WIDEN(out[i]) * WIDEN(up[i]));
}

static void NAME(swiglu_token)(const void *data, int64_t token) {
  const NAME(gelu_arguments) *of = data;
  const int64_t size = of->size;
  const element *gate = of->x + 2 * token * size, *up = gate + size;
  element *out = of->out + token * size;
  const float rate = -LOG2_E * of->alpha, limit = of->limit;
  SIMD for (int64_t i = 0; i < size; i++) {
    float x = WIDEN(gate[i]), y = WIDEN(up[i]);
    x = x > limit ? limit : x; /* NaN stays NaN */
    y = y > limit ? limit : y;
    y = y < -limit ? -limit : y;
    out[i] = NARROW((y + 1.0f) * times_sigmoid(x, rate * x));
  }
}

static void NAME(rescale_token)(const void *data, int64_t token) {
  const NAME(rescale_arguments) *of = data;
  element *x = of->x + token * of->size;
  const element *added = of->added ? of->added + token * of->size : 0;
  const float factor = of->factor, softcap = of->softcap, share = factor / softcap;
  if (softcap > 0.0f) SIMD for (int64_t i = 0; i < of->size; i++) x[i] = NARROW(softcap * tanh_of(WIDEN(x[i]) * share));
  else if (added) SIMD for (int64_t i = 0; i < of->size; i++) x[i] = NARROW(WIDEN(x[i]) * factor + WIDEN(added[i]));
  else SIMD for (int64_t i = 0; i < of->size; i++) x[i] = NARROW(WIDEN(x[i]) * factor);
}

ITEM_OPERATION(gelu, gelu_arguments, of->num_tokens, of->num_tokens * of->size * 4, gelu_token)
ITEM_OPERATION(relu_squared, gelu_arguments, of->num_tokens, of->num_tokens * of->size * 4, relu_squared_token)
ITEM_OPERATION(silu_mul, gelu_arguments, of->num_tokens, of->num_tokens * of->size * 4, silu_mul_token)
ITEM_OPERATION(gelu_mul, gelu_arguments, of->num_tokens, of->num_tokens * of->size * 4, gelu_mul_token)
ITEM_OPERATION(swiglu_oai, gelu_arguments, of->num_tokens, of->num_tokens * of->size * 4, swiglu_token)
ITEM_OPERATION(rescale, rescale_arguments, of->num_tokens, of->num_tokens * of->size * (of->softcap > 0.0f ? 4 : 1), rescale_token)
