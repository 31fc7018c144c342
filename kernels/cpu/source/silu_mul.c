/* The gated activation: kernels/operations/silu_mul.py says what it does. */

#ifndef SLUICE_SILU_MUL
#define SLUICE_SILU_MUL
/* Bytes ahead that both parts of a row are asked for: of many rows they come from outside of a core's caches. */
enum { SILU_AHEAD = 4096 };
#endif

typedef struct {
  const element *gate_up;
  element *out;
  int64_t size;
} NAME(silu_mul_call);

static void NAME(silu_mul_token)(const void *data, int64_t token) {
  const NAME(silu_mul_call) *call = data;
  const int64_t size = call->size;
  const element *gate = call->gate_up + 2 * token * size, *up = gate + size;
  element *out = call->out + token * size;
#if IS_BFLOAT16 && defined(__AVX512BF16__)
  const __m512 one = _mm512_set1_ps(1.0f), limit = _mm512_set1_ps(126.0f), rate = _mm512_set1_ps(-LOG2_E);
  for (int64_t i = 0; i < size; i += 16) {
    const __mmask16 lanes = lanes_of(size - i);
    __builtin_prefetch((const char *)(gate + i) + SILU_AHEAD);
    __builtin_prefetch((const char *)(up + i) + SILU_AHEAD);
    const __m512 x = load_vector(gate + i, lanes);
    __m512 power = _mm512_min_ps(limit, _mm512_mul_ps(x, rate)); /* NaN stays NaN */
    power = _mm512_max_ps(_mm512_sub_ps(_mm512_setzero_ps(), limit), power);
    const __m512 activated = _mm512_mul_ps(x, _mm512_rcp14_ps(_mm512_add_ps(one, rough_powers_of_2(power))));
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

/* gate_up: [num_tokens, 2 * size]; out: [num_tokens, size]. */
PUBLIC void NAME(silu_mul)(const element *gate_up, element *out, int64_t num_tokens, int64_t size) {
  NAME(silu_mul_call) call = {gate_up, out, size};
  run_items(num_tokens, num_tokens * size * 4, NAME(silu_mul_token), &call);
}
