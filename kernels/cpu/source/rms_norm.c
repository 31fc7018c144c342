/* Root-mean-square normalization with the residual addition before it: kernels/operations/rms_norm.py says what it does.

   What is normed is rounded before the weight is applied, as the checkpoints' own code does. */

typedef struct {
  element *x;
  const element *update, *weight;
  element *out;
  int64_t size;
  float eps;
} NAME(rms_norm_call);

#if IS_BFLOAT16 && defined(__AVX512BF16__)
INLINE __m512 NAME(rms_scale)(__m512 squares, int64_t size, float eps) {
  return _mm512_set1_ps(1.0f / sqrtf(_mm512_reduce_add_ps(squares) / (float)size + eps));
}

static void NAME(rms_norm_token)(const void *data, int64_t token) {
  const NAME(rms_norm_call) *call = data;
  const int64_t size = call->size;
  element *x = call->x + token * size, *out = call->out + token * size;
  const element *update = call->update ? call->update + token * size : 0;
  __m512 squares = _mm512_setzero_ps();
  for (int64_t i = 0; i < size; i += 16) {
    const __mmask16 lanes = lanes_of(size - i);
    __m512 wide = load_vector(x + i, lanes);
    if (update) {
      wide = round_vector(_mm512_add_ps(wide, load_vector(update + i, lanes)));
      store_vector(x + i, lanes, wide);
    }
    squares = _mm512_fmadd_ps(wide, wide, squares);
  }
  const __m512 scale = NAME(rms_scale)(squares, size, call->eps);
  for (int64_t i = 0; i < size; i += 16) {
    const __mmask16 lanes = lanes_of(size - i);
    const __m512 normed = round_vector(_mm512_mul_ps(load_vector(x + i, lanes), scale));
    store_vector(out + i, lanes, _mm512_mul_ps(normed, load_vector(call->weight + i, lanes)));
  }
}
#else
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
  SIMD for (int64_t i = 0; i < size; i++) out[i] = NARROW(WIDEN(NARROW(WIDEN(x[i]) * scale)) * WIDEN(weight[i]));
}
#endif

/* x, update (or null) and out: [num_tokens, size]. */
PUBLIC void NAME(rms_norm)(element *x, const element *update, const element *weight, element *out, int64_t num_tokens,
                           int64_t size, float eps) {
  NAME(rms_norm_call) call = {x, update, weight, out, size, eps};
  run_items(num_tokens, num_tokens * size, NAME(rms_norm_token), &call);
}
