/* Layer normalization with the residual addition before it: kernels/operations/layer_norm.py says what it does. */

typedef struct {
  element *x;
  const element *update, *weight, *bias;
  element *out;
  int64_t size;
  float eps;
} NAME(layer_norm_call);

#if IS_BFLOAT16 && defined(__AVX512BF16__)
static void NAME(layer_norm_token)(const void *data, int64_t token) {
  const NAME(layer_norm_call) *call = data;
  const int64_t size = call->size;
  element *x = call->x + token * size, *out = call->out + token * size;
  const element *update = call->update ? call->update + token * size : 0;
  __m512 sum = _mm512_setzero_ps(), squares = sum;
  for (int64_t i = 0; i < size; i += 16) {
    const __mmask16 lanes = lanes_of(size - i);
    __m512 wide = load_vector(x + i, lanes);
    if (update) {
      wide = round_vector(_mm512_add_ps(wide, load_vector(update + i, lanes)));
      store_vector(x + i, lanes, wide);
    }
    sum = _mm512_add_ps(sum, wide);
  }
  const __m512 mean = _mm512_set1_ps(_mm512_reduce_add_ps(sum) / (float)size);
  for (int64_t i = 0; i < size; i += 16) {
    const __mmask16 lanes = lanes_of(size - i);
    const __m512 centered = _mm512_maskz_sub_ps(lanes, load_vector(x + i, lanes), mean);
    squares = _mm512_fmadd_ps(centered, centered, squares);
  }
  const __m512 scale = _mm512_set1_ps(1.0f / sqrtf(_mm512_reduce_add_ps(squares) / (float)size + call->eps));
  for (int64_t i = 0; i < size; i += 16) {
    const __mmask16 lanes = lanes_of(size - i);
    const __m512 normed = _mm512_mul_ps(_mm512_sub_ps(load_vector(x + i, lanes), mean), scale);
    const __m512 weight = load_vector(call->weight + i, lanes);
    store_vector(out + i, lanes, _mm512_fmadd_ps(normed, weight, load_vector(call->bias + i, lanes)));
  }
}
#else
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
#endif

/* x, update (or null) and out: [num_tokens, size]. */
PUBLIC void NAME(layer_norm)(element *x, const element *update, const element *weight, const element *bias,
                             element *out, int64_t num_tokens, int64_t size, float eps) {
  NAME(layer_norm_call) call = {x, update, weight, bias, out, size, eps};
  run_items(num_tokens, num_tokens * size, NAME(layer_norm_token), &call);
}
