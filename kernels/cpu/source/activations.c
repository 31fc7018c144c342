/* GELU, squared ReLU and the gated activations: see kernels/operations/gelu.py,
   relu_squared.py, gelu_mul.py, silu_mul.py and swiglu_oai.py; and rescale.py. */

#ifndef SLUICE_ACTIVATIONS
#define SLUICE_ACTIVATIONS
/* How far ahead both halves of a row are prefetched, in bytes: with many rows they come from outside of a core's caches. */
enum { SILU_AHEAD = 4096 };
#endif

typedef struct {
  const element *x;
  element *out;
  int64_t size;
  const element *up; /* rows that are `up_stride` elements apart, or null if `x` has both halves */
  int64_t up_stride;
  int is_exact; /* GELU, not its tanh approximation */
} NAME(activation_call);

/* A GELU of `size` numbers, possibly in place. */
INLINE void NAME(gelu_row)(const NAME(activation_call) *call, const element *x, element *out) {
  if (call->is_exact) SIMD for (int64_t i = 0; i < call->size; i++) out[i] = NARROW(gelu_exact(WIDEN(x[i])));
  else SIMD for (int64_t i = 0; i < call->size; i++) out[i] = NARROW(gelu_tanh(WIDEN(x[i])));
}

static void NAME(gelu_token)(const void *data, int64_t token) {
  const NAME(activation_call) *call = data;
  NAME(gelu_row)(call, call->x + token * call->size, call->out + token * call->size);
}

static void NAME(relu_squared_token)(const void *data, int64_t token) {
  const NAME(activation_call) *call = data;
  element *x = call->out + token * call->size;
  SIMD for (int64_t i = 0; i < call->size; i++) {
    float value = WIDEN(x[i]);
    value = value < 0.0f ? 0.0f : value; /* NaN stays NaN */
    x[i] = NARROW(value * value);
  }
}

static void NAME(silu_mul_token)(const void *data, int64_t token) {
  const NAME(activation_call) *call = data;
  const int64_t size = call->size;
  const element *gate = call->x + 2 * token * size, *up = gate + size;
  element *out = call->out + token * size;
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
    float x = WIDEN(gate[i]);
    float power = -LOG2_E * x;
    power = power > 126.0f ? 126.0f : power;
    float activated = x / (1.0f + power_of_2(power));
    out[i] = NARROW(WIDEN(NARROW(activated)) * WIDEN(up[i]));
  }
#endif
}

static void NAME(gelu_mul_token)(const void *data, int64_t token) {
  const NAME(activation_call) *call = data;
  const element *gate = call->x + (call->up ? 1 : 2) * token * call->size;
  const element *up = call->up ? call->up + token * call->up_stride : gate + call->size;
  element *out = call->out + token * call->size;
  NAME(gelu_row)(call, gate, out);
  SIMD for (int64_t i = 0; i < call->size; i++) out[i] = NARROW(WIDEN(out[i]) * WIDEN(up[i]));
}

typedef struct {
  NAME(activation_call) gated;
  float alpha, limit;
} NAME(swiglu_call);

static void NAME(swiglu_token)(const void *data, int64_t token) {
  const NAME(swiglu_call) *call = data;
  const int64_t size = call->gated.size;
  const element *gate = call->gated.x + 2 * token * size, *up = gate + size;
  element *out = call->gated.out + token * size;
  const float rate = -LOG2_E * call->alpha, limit = call->limit;
  SIMD for (int64_t i = 0; i < size; i++) {
    float x = WIDEN(gate[i]), y = WIDEN(up[i]);
    x = x > limit ? limit : x; /* NaN stays NaN */
    y = y > limit ? limit : y;
    y = y < -limit ? -limit : y;
    float power = rate * x;
    power = power > 126.0f ? 126.0f : power;
    out[i] = NARROW((y + 1.0f) * (x / (1.0f + power_of_2(power))));
  }
}

typedef struct {
  element *x;
  const element *added; /* or null */
  int64_t size;
  float factor, softcap;
} NAME(rescale_call);

static void NAME(rescale_token)(const void *data, int64_t token) {
  const NAME(rescale_call) *call = data;
  element *x = call->x + token * call->size;
  const element *added = call->added ? call->added + token * call->size : 0;
  const float factor = call->factor, softcap = call->softcap, share = factor / softcap;
  if (softcap > 0.0f) SIMD for (int64_t i = 0; i < call->size; i++) x[i] = NARROW(softcap * tanh_of(WIDEN(x[i]) * share));
  else if (added) SIMD for (int64_t i = 0; i < call->size; i++) x[i] = NARROW(WIDEN(x[i]) * factor + WIDEN(added[i]));
  else SIMD for (int64_t i = 0; i < call->size; i++) x[i] = NARROW(WIDEN(x[i]) * factor);
}

/* x and out: [num_tokens, size]. */
PUBLIC void NAME(gelu)(const element *x, element *out, int64_t num_tokens, int64_t size, int64_t is_exact) {
  const NAME(activation_call) call = {.x = x, .out = out, .size = size, .is_exact = is_exact != 0};
  run_items(num_tokens, num_tokens * size * 4, NAME(gelu_token), &call);
}

/* x: [num_tokens, size], overwritten. */
PUBLIC void NAME(relu_squared)(element *x, int64_t num_tokens, int64_t size) {
  const NAME(activation_call) call = {.out = x, .size = size};
  run_items(num_tokens, num_tokens * size * 4, NAME(relu_squared_token), &call);
}

/* gate_up: [num_tokens, 2 * size]; out: [num_tokens, size]. */
PUBLIC void NAME(silu_mul)(const element *gate_up, element *out, int64_t num_tokens, int64_t size) {
  const NAME(activation_call) call = {.x = gate_up, .out = out, .size = size};
  run_items(num_tokens, num_tokens * size * 4, NAME(silu_mul_token), &call);
}

/* As silu_mul; or with `up`, rows that are `up_stride` elements apart, and then the gate alone: [num_tokens, size]. */
PUBLIC void NAME(gelu_mul)(const element *gate_up, const element *up, element *out, int64_t num_tokens, int64_t size,
                           int64_t up_stride, int64_t is_exact) {
  const NAME(activation_call) call = {gate_up, out, size, up, up_stride, is_exact != 0};
  run_items(num_tokens, num_tokens * size * 4, NAME(gelu_mul_token), &call);
}

/* As silu_mul. */
PUBLIC void NAME(swiglu_oai)(const element *gate_up, element *out, int64_t num_tokens, int64_t size, float alpha, float limit) {
  const NAME(swiglu_call) call = {{.x = gate_up, .out = out, .size = size}, alpha, limit};
  run_items(num_tokens, num_tokens * size * 4, NAME(swiglu_token), &call);
}

/* x and added (or null): [num_tokens, size]; softcap 0 for none. */
PUBLIC void NAME(rescale)(element *x, const element *added, int64_t num_tokens, int64_t size, float factor, float softcap) {
  const NAME(rescale_call) call = {x, added, size, factor, softcap};
  run_items(num_tokens, num_tokens * size * (softcap > 0.0f ? 4 : 1), NAME(rescale_token), &call);
}
