/* The gated activation: kernels/silu_mul.py says what it does. */

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
  SIMD for (int64_t i = 0; i < size; i++) {
    float x = WIDEN(gate[i]);
    float power = -LOG2_E * x;
    power = power > 126.0f ? 126.0f : power;
    float activated = x / (1.0f + power_of_2(power));
    out[i] = NARROW(WIDEN(NARROW(activated)) * WIDEN(up[i]));
  }
}

/* gate_up: [num_tokens, 2 * size]; out: [num_tokens, size]. */
PUBLIC void NAME(silu_mul)(const element *gate_up, element *out, int64_t num_tokens, int64_t size) {
  NAME(silu_mul_call) call = {gate_up, out, size};
  run_items(num_tokens, num_tokens * size * 4, NAME(silu_mul_token), &call);
}
