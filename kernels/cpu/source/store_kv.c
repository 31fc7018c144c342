/* Norms of heads, rotary positions and the writing of K and V in one pass: kernels/rotate_store.py says what it does. */

typedef struct {
  element *heads;
  const float *cosines, *sines;
  const int32_t *positions;
  const int64_t *slots;
  void *keys, *values;
  uint16_t *key_scales, *value_scales;
  const element *query_weight, *key_weight;
  int64_t num_heads, num_kv_heads, head_dim;
  float eps;
} NAME(store_kv_call);

INLINE void NAME(norm_heads)(element *heads, const element *weight, int64_t num_heads, int64_t head_dim, float eps) {
  const NAME(rms_norm_call) call = {heads, 0, weight, heads, head_dim, eps};
  for (int64_t head = 0; head < num_heads; head++) NAME(rms_norm_token)(&call, head);
}

INLINE void NAME(rotate_head)(const element *in, element *out, const float *cosines, const float *sines, int64_t half) {
  SIMD for (int64_t i = 0; i < half; i++) {
    float first = WIDEN(in[i]), second = WIDEN(in[i + half]);
    out[i] = NARROW(first * cosines[i] - second * sines[i]);
    out[i + half] = NARROW(second * cosines[i] + first * sines[i]);
  }
}

/* Writes a head as codes of -127 to 127; returns their scale. What is not finite makes a scale that is not. */
INLINE uint16_t NAME(quantize_head)(const element *in, int8_t *codes, int64_t head_dim) {
  uint32_t largest = 0; /* as bits: NaN is more than any number */
  _Pragma("omp simd reduction(max : largest)") for (int64_t i = 0; i < head_dim; i++) {
    const uint32_t magnitude = bits_of(WIDEN(in[i])) & 0x7fffffffu;
    largest = magnitude > largest ? magnitude : largest;
  }
  const uint16_t scale = narrow_bfloat16(float_of(largest) / 127.0f);
  const float to_integer = 12582912.0f, unit = widen_bfloat16(scale), divisor = unit > 0.0f ? unit : 1.0f;
  SIMD for (int64_t i = 0; i < head_dim; i++) {
    float code = WIDEN(in[i]) / divisor;
    code = code < -127.0f ? -127.0f : code > 127.0f ? 127.0f : code;
    codes[i] = (int8_t)bits_of(code + to_integer);
  }
  return scale;
}

INLINE void NAME(store_codes)(const NAME(store_kv_call) *call, const element *key, const element *value, int64_t slot) {
  for (int64_t head = 0; head < call->num_kv_heads; head++, key += call->head_dim, value += call->head_dim) {
    const int64_t place = slot * call->num_kv_heads + head, at = place * call->head_dim;
    call->key_scales[place] = NAME(quantize_head)(key, (int8_t *)call->keys + at, call->head_dim);
    call->value_scales[place] = NAME(quantize_head)(value, (int8_t *)call->values + at, call->head_dim);
  }
}

static void NAME(store_kv_token)(const void *data, int64_t token) {
  const NAME(store_kv_call) *call = data;
  const int64_t head_dim = call->head_dim, half = head_dim / 2, kv_size = call->num_kv_heads * head_dim;
  const int64_t slot = call->slots[token], query_size = call->num_heads * head_dim;
  element *query = call->heads + token * (query_size + 2 * kv_size), *key = query + query_size;
  const element *value = key + kv_size;
  if (call->query_weight) {
    NAME(norm_heads)(query, call->query_weight, call->num_heads, head_dim, call->eps);
    NAME(norm_heads)(key, call->key_weight, call->num_kv_heads, head_dim, call->eps);
  }
  const float *cosines = 0, *sines = 0;
  if (call->cosines) {
    cosines = call->cosines + call->positions[token] * half;
    sines = call->sines + call->positions[token] * half;
    for (int64_t head = 0; head < call->num_heads; head++)
      NAME(rotate_head)(query + head * head_dim, query + head * head_dim, cosines, sines, half);
  }
  if (slot < 0) return;
  if (call->key_scales) {
    for (int64_t head = 0; cosines && head < call->num_kv_heads; head++)
      NAME(rotate_head)(key + head * head_dim, key + head * head_dim, cosines, sines, half);
    NAME(store_codes)(call, key, value, slot);
    return;
  }
  element *out = (element *)call->keys + slot * kv_size;
  memcpy((element *)call->values + slot * kv_size, value, kv_size * sizeof(element));
  if (!cosines) {
    memcpy(out, key, kv_size * sizeof(element));
    return;
  }
  for (int64_t head = 0; head < call->num_kv_heads; head++)
    NAME(rotate_head)(key + head * head_dim, out + head * head_dim, cosines, sines, half);
}

/* heads: [num_tokens, num_heads + 2 * num_kv_heads, head_dim]: query, key and value heads. cosines and sines: [positions,
   head_dim / 2], or null for no rotation. keys, values: [slots, num_kv_heads, head_dim], of codes where there are scales:
   [slots, num_kv_heads]. query_weight, key_weight: [head_dim], or null for no norms. */
PUBLIC void NAME(store_kv)(element *heads, const float *cosines, const float *sines, const int32_t *positions,
                           const int64_t *slots, void *keys, void *values, uint16_t *key_scales,
                           uint16_t *value_scales, const element *query_weight, const element *key_weight,
                           int64_t num_tokens, int64_t num_heads, int64_t num_kv_heads, int64_t head_dim, float eps) {
  NAME(store_kv_call)
  call = {heads, cosines, sines, positions, slots, keys, values, key_scales, value_scales, query_weight, key_weight,
          num_heads, num_kv_heads, head_dim, eps};
  run_items(num_tokens, num_tokens * (num_heads + 2 * num_kv_heads) * head_dim, NAME(store_kv_token), &call);
}
