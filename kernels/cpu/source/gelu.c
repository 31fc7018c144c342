/* The tanh approximation of GELU: kernels/operations/gelu.py says what it does. */

typedef struct {
  const element *x;
  element *out;
  int64_t size;
} NAME(gelu_call);

static void NAME(gelu_token)(const void *data, int64_t token) {
  const NAME(gelu_call) *call = data;
  const int64_t size = call->size;
  const element *x = call->x + token * size;
  element *out = call->out + token * size;
  SIMD for (int64_t i = 0; i < size; i++) {
    out[i] = NARROW(gelu_tanh(WIDEN(x[i])));
  }
}

/* x and out: [num_tokens, size]. */
PUBLIC void NAME(gelu)(const element *x, element *out, int64_t num_tokens, int64_t size) {
  NAME(gelu_call) call = {x, out, size};
  run_items(num_tokens, num_tokens * size * 4, NAME(gelu_token), &call);
}
