/* Layer normalization with the residual addition before it: kernels/layer_norm.py says what it does. */

typedef struct {
  element *x;
  const element *update, *weight, *bias;
  element *out;
  int64_t size;
  float eps;
} NAME(layer_norm_call);

static void NAME(layer_norm_token)(const void *data, int64_t token) {
  const NAME(layer_norm_call) *call = data;
  const int64_t size = call->size;
  element *x = call->x + token * size, *out = call->out + token * size;
  if (call->update) {
    const element *update = call->update + token * size;
    SIMD for (int64_t i = 0; i < size; i++) x[i] = NARROW(WIDEN(x[i]) + WIDEN(update[i]));
  }
  float sum = 0.0f, squares = 0.0f;
  SIMD_SUM(sum) for (int64_t i = 0; i < size; i++) sum += WIDEN(x[i]);
  const float mean = sum / (float)size;
  SIMD_SUM(squares) for (int64_t i = 0; i < size; i++) {
    float centered = WIDEN(x[i]) - mean;
    squares += centered * centered;
  }
  const float scale = 1.0f / sqrtf(squares / (float)size + call->eps);
  const element *weight = call->weight, *bias = call->bias;
  SIMD for (int64_t i = 0; i < size; i++)
      out[i] = NARROW((WIDEN(x[i]) - mean) * scale * WIDEN(weight[i]) + WIDEN(bias[i]));
}

/* x, update (or null) and out: [num_tokens, size]. */
PUBLIC void NAME(layer_norm)(element *x, const element *update, const element *weight, const element *bias,
                             element *out, int64_t num_tokens, int64_t size, float eps) {
  NAME(layer_norm_call) call = {x, update, weight, bias, out, size, eps};
  run_items(num_tokens, num_tokens * size, NAME(layer_norm_token), &call);
}
