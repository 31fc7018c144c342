/* Root-mean-square normalization with the residual addition before it: kernels/rms_norm.py says what it does. */

typedef struct {
  element *x;
  const element *update, *weight;
  element *out;
  int64_t size;
  float eps;
} NAME(rms_norm_call);

static void NAME(rms_norm_token)(const void *data, int64_t token) {
  const NAME(rms_norm_call) *call = data;
  const int64_t size = call->size;
  element *x = call->x + token * size, *out = call->out + token * size;
  if (call->update) {
    const element *update = call->update + token * size;
    SIMD for (int64_t i = 0; i < size; i++) x[i] = NARROW(WIDEN(x[i]) + WIDEN(update[i]));
  }
  float squares = 0.0f;
  SIMD_SUM(squares) for (int64_t i = 0; i < size; i++) {
    float wide = WIDEN(x[i]);
    squares += wide * wide;
  }
  const float scale = 1.0f / sqrtf(squares / (float)size + call->eps);
  const element *weight = call->weight;
  /* Rounded before the weight is applied, as the checkpoints' own code does. */
  SIMD for (int64_t i = 0; i < size; i++) out[i] = NARROW(WIDEN(NARROW(WIDEN(x[i]) * scale)) * WIDEN(weight[i]));
}

/* x, update (or null) and out: [num_tokens, size]. */
PUBLIC void NAME(rms_norm)(element *x, const element *update, const element *weight, element *out, int64_t num_tokens,
                           int64_t size, float eps) {
  NAME(rms_norm_call) call = {x, update, weight, out, size, eps};
  run_items(num_tokens, num_tokens * size, NAME(rms_norm_token), &call);
}
