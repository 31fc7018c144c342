/* Layer and root-mean-square normalization with the residual addition before it: see kernels/operations/layer_norm.py and
   rms_norm.py.

   RMS norm rounds the normed values before it applies the weight, as the checkpoints' own code does. */

#if IS_BFLOAT16 && defined(__AVX512BF16__)
/* Up to 16 elements of x, after the update (or null) is added to them. */
INLINE __m512 NAME(load_updated)(element *x, const element *update, int64_t i, __mmask16 lanes) {
  const __m512 wide = load_vector(x + i, lanes);
  if (!update) return wide;
  const __m512 sum = round_vector(_mm512_add_ps(wide, load_vector(update + i, lanes)));
  store_vector(x + i, lanes, sum);
  return sum;
}

INLINE __m512 NAME(norm_scale)(__m512 squares, int64_t size, float eps) {
  return _mm512_set1_ps(1.0f / sqrtf(_mm512_reduce_add_ps(squares) / (float)size + eps));
}

static void NAME(layer_norm_token)(const void *data, int64_t token) {
  const NAME(layer_norm_arguments) *of = data;
  const int64_t size = of->size;
  element *x = of->x + token * of->stride, *out = of->out + token * of->stride;
  const element *update = of->update ? of->update + token * size : 0;
  __m512 sum = _mm512_setzero_ps(), squares = sum;
  for (int64_t i = 0; i < size; i += 16) sum = _mm512_add_ps(sum, NAME(load_updated)(x, update, i, lanes_of(size - i)));
  const __m512 mean = _mm512_set1_ps(_mm512_reduce_add_ps(sum) / (float)size);
  for (int64_t i = 0; i < size; i += 16) {
    const __mmask16 lanes = lanes_of(size - i);
    const __m512 centered = _mm512_maskz_sub_ps(lanes, load_vector(x + i, lanes), mean);
    squares = _mm512_fmadd_ps(centered, centered, squares);
  }
  const __m512 scale = NAME(norm_scale)(squares, size, of->eps);
  for (int64_t i = 0; i < size; i += 16) {
    const __mmask16 lanes = lanes_of(size - i);
    const __m512 normed = _mm512_mul_ps(_mm512_sub_ps(load_vector(x + i, lanes), mean), scale);
    const __m512 weight = load_vector(of->weight + i, lanes), bias = load_vector(of->bias + i, lanes);
    store_vector(out + i, lanes, _mm512_fmadd_ps(normed, weight, bias));
  }
}

static void NAME(rms_norm_token)(const void *data, int64_t token) {
  const NAME(layer_norm_arguments) *of = data;
  const int64_t size = of->size;
  element *x = of->x + token * of->stride, *out = of->out + token * of->stride;
  const element *update = of->update ? of->update + token * size : 0;
  __m512 squares = _mm512_setzero_ps();
  for (int64_t i = 0; i < size; i += 16) {
    const __m512 wide = NAME(load_updated)(x, update, i, lanes_of(size - i));
    squares = _mm512_fmadd_ps(wide, wide, squares);
  }
  const __m512 scale = NAME(norm_scale)(squares, size, of->eps);
  for (int64_t i = 0; i < size; i += 16) {
    const __mmask16 lanes = lanes_of(size - i);
    const __m512 normed = round_vector(_mm512_mul_ps(load_vector(x + i, lanes), scale));
    store_vector(out + i, lanes, _mm512_mul_ps(normed, load_vector(of->weight + i, lanes)));
  }
}
#else
/* Returns the token's elements of x, after the update is added to them. */
INLINE const element *NAME(updated)(const NAME(layer_norm_arguments) *of, int64_t token) {
  element *x = of->x + token * of->stride;
  if (of->update) {
    const element *update = of->update + token * of->size;
    SIMD for (int64_t i = 0; i < of->size; i++) x[i] = NARROW(WIDEN(x[i]) + WIDEN(update[i]));
  }
  return x;
}

static void NAME(layer_norm_token)(const void *data, int64_t token) {
  const NAME(layer_norm_arguments) *of = data;
  const int64_t size = of->size;
  const element *x = NAME(updated)(of, token), *weight = of->weight, *bias = of->bias;
  element *out = of->out + token * of->stride;
  float sum = 0.0f, squares = 0.0f;
  SIMD_SUM(sum) for (int64_t i = 0; i < size; i++) sum += WIDEN(x[i]);
  const float mean = sum / (float)size;
  SIMD_SUM(squares) for (int64_t i = 0; i < size; i++) {
    float centered = WIDEN(x[i]) - mean;
    squares += centered * centered;
  }
  const float scale = 1.0f / sqrtf(squares / (float)size + of->eps);
  SIMD for (int64_t i = 0; i < size; i++)
      out[i] = NARROW((WIDEN(x[i]) - mean) * scale * WIDEN(weight[i]) + WIDEN(bias[i]));
}

static void NAME(rms_norm_token)(const void *data, int64_t token) {
  const NAME(layer_norm_arguments) *of = data;
  const int64_t size = of->size;
  const element *x = NAME(updated)(of, token), *weight = of->weight;
  element *out = of->out + token * of->stride;
  float squares = 0.0f;
  SIMD_SUM(squares) for (int64_t i = 0; i < size; i++) {
    float wide = WIDEN(x[i]);
    squares += wide * wide;
  }
  const float scale = 1.0f / sqrtf(squares / (float)size + of->eps);
  SIMD for (int64_t i = 0; i < size; i++) out[i] = NARROW(WIDEN(NARROW(WIDEN(x[i]) * scale)) * WIDEN(weight[i]));
}
#endif

ITEM_OPERATION(layer_norm, layer_norm_arguments, of->num_tokens, of->num_tokens * of->size, layer_norm_token)
ITEM_OPERATION(rms_norm, layer_norm_arguments, of->num_tokens, of->num_tokens * of->size, rms_norm_token)
