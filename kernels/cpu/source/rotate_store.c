/* Normalizes and rotates heads and stores K and V, in one pass: see kernels/operations/rotate_store.py. */

typedef struct {
  element *heads;
  const float *cosines, *sines;
  const int32_t *positions;
  const int64_t *slots;
  void *keys, *values;
  uint16_t *key_scales, *value_scales;
  const element *query_weight, *key_weight, *value_weight;
  int64_t num_heads, num_kv_heads, head_dim, half, query_row;
  float eps;
  int64_t is_float16;
} NAME(rotate_store_call);

INLINE void NAME(norm_heads)(element *heads, const element *weight, int64_t num_heads, int64_t head_dim, float eps) {
  const NAME(norm_call) call = {heads, 0, weight, 0, heads, head_dim, head_dim, eps};
  for (int64_t head = 0; head < num_heads; head++) NAME(rms_norm_token)(&call, head);
}

#if IS_BFLOAT16 && defined(__AVX512BF16__)
/* The factor of a head before its weight is applied. */
INLINE __m512 NAME(head_scale)(const element *head, int64_t size, float eps) {
  __m512 squares = _mm512_setzero_ps();
  for (int64_t i = 0; i < size; i += 16) {
    const __m512 x = load_vector(head + i, lanes_of(size - i));
    squares = _mm512_fmadd_ps(x, x, squares);
  }
  return NAME(norm_scale)(squares, size, eps);
}

INLINE __m512 NAME(load_normed)(const element *in, const element *weight, __m512 scale, __mmask16 lanes) {
  const __m512 x = load_vector(in, lanes);
  return weight ? round_vector(_mm512_mul_ps(round_vector(_mm512_mul_ps(x, scale)), load_vector(weight, lanes))) : x;
}

/* Up to 16 pairs of a head, from the i-th on. */
INLINE void NAME(rotate_pairs)(const element *in, element *out, const element *weight, __m512 scale, const float *cosines,
                               const float *sines, int64_t half, int64_t i, __mmask16 lanes) {
  const __m512 first = NAME(load_normed)(in + i, weight ? weight + i : 0, scale, lanes);
  const __m512 second = NAME(load_normed)(in + half + i, weight ? weight + half + i : 0, scale, lanes);
  const __m512 cosine = load_floats(cosines + i, lanes), sine = load_floats(sines + i, lanes);
  store_vector(out + i, lanes, _mm512_fmsub_ps(first, cosine, _mm512_mul_ps(second, sine)));
  store_vector(out + half + i, lanes, _mm512_fmadd_ps(second, cosine, _mm512_mul_ps(first, sine)));
}

/* Rotates the first 2 * half elements of each head. A head's scale is a long chain of operations: it is computed while
   the previous head is rotated. */
INLINE void NAME(rotate_heads)(const element *in, element *out, const element *weight, int64_t num_heads,
                               const float *cosines, const float *sines, int64_t half, int64_t head_dim, float eps) {
  __m512 next = _mm512_setzero_ps();
  if (weight) next = NAME(head_scale)(in, head_dim, eps);
  for (int64_t head = 0; head < num_heads; head++, in += head_dim, out += head_dim) {
    const __m512 scale = next;
    if (weight && head + 1 < num_heads) next = NAME(head_scale)(in + head_dim, head_dim, eps);
    int64_t i = 0;
    for (; i + 16 <= half; i += 16) NAME(rotate_pairs)(in, out, weight, scale, cosines, sines, half, i, 0xffff);
    if (i < half) NAME(rotate_pairs)(in, out, weight, scale, cosines, sines, half, i, lanes_of(half - i));
    for (i = 2 * half; i < head_dim; i += 16) {
      const __mmask16 lanes = lanes_of(head_dim - i);
      store_vector(out + i, lanes, NAME(load_normed)(in + i, weight ? weight + i : 0, scale, lanes));
    }
  }
}
#else
INLINE void NAME(rotate_heads)(element *in, element *out, const element *weight, int64_t num_heads, const float *cosines,
                               const float *sines, int64_t half, int64_t head_dim, float eps) {
  if (weight) NAME(norm_heads)(in, weight, num_heads, head_dim, eps);
  for (int64_t head = 0; head < num_heads; head++, in += head_dim, out += head_dim) {
    SIMD for (int64_t i = 0; i < half; i++) {
      float first = WIDEN(in[i]), second = WIDEN(in[i + half]);
      out[i] = NARROW(first * cosines[i] - second * sines[i]);
      out[i + half] = NARROW(second * cosines[i] + first * sines[i]);
    }
    for (int64_t i = 2 * half; i < head_dim; i++) out[i] = in[i];
  }
}
#endif

/* Writes a head as codes from -127 to 127; returns their scale, which is not finite if an element is not. */
INLINE uint16_t NAME(quantize_head)(const element *in, int8_t *codes, int64_t head_dim) {
  uint32_t largest = 0; /* as bits: NaN is larger than any number */
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

INLINE void NAME(store_codes)(const NAME(rotate_store_call) *call, const element *key, const element *value, int64_t slot) {
  for (int64_t head = 0; head < call->num_kv_heads; head++, key += call->head_dim, value += call->head_dim) {
    const int64_t place = slot * call->num_kv_heads + head, at = place * call->head_dim;
    call->key_scales[place] = NAME(quantize_head)(key, (int8_t *)call->keys + at, call->head_dim);
    call->value_scales[place] = NAME(quantize_head)(value, (int8_t *)call->values + at, call->head_dim);
  }
}

/* Writes a token's heads to `out`, normalized if there is a weight and rotated if there are cosines; may change `in`. */
INLINE void NAME(turn_heads)(const NAME(rotate_store_call) *call, element *in, element *out, const element *weight,
                             int64_t num_heads, const float *cosines, const float *sines) {
  const int64_t head_dim = call->head_dim, half = call->half;
  const float eps = call->eps;
  if (cosines && weight) {
    NAME(rotate_heads)(in, out, weight, num_heads, cosines, sines, half, head_dim, eps);
  } else if (cosines) {
    NAME(rotate_heads)(in, out, 0, num_heads, cosines, sines, half, head_dim, eps);
  } else {
    if (weight) NAME(norm_heads)(in, weight, num_heads, head_dim, eps);
    if (in != out) memcpy(out, in, (size_t)(num_heads * head_dim) * sizeof(element));
  }
}

static void NAME(rotate_store_token)(const void *data, int64_t token) {
  const NAME(rotate_store_call) *call = data;
  const int64_t head_dim = call->head_dim, kv_size = call->num_kv_heads * head_dim;
  const int64_t slot = call->keys ? call->slots[token] : 0, query_size = call->num_heads * head_dim;
  element *query = call->heads + token * (query_size + 2 * kv_size), *key = query + query_size;
  element *value = key + kv_size;
  const float *cosines = call->cosines ? call->cosines + call->positions[token] * call->half : 0;
  const float *sines = cosines ? call->sines + call->positions[token] * call->half : 0;
  const int64_t to_query = call->query_row * call->half;
  NAME(turn_heads)(call, query, query, call->query_weight, call->num_heads, cosines + to_query, sines + to_query);
  if (slot < 0 || !kv_size) return;
  const int is_stored_later = call->key_scales || call->is_float16, stays = !call->keys || is_stored_later;
  element *out = stays ? key : (element *)call->keys + slot * kv_size;
  NAME(turn_heads)(call, key, out, call->key_weight, call->num_kv_heads, cosines, sines);
  out = stays ? value : (element *)call->values + slot * kv_size;
  NAME(turn_heads)(call, value, out, call->value_weight, call->num_kv_heads, 0, 0);
  if (call->key_scales) NAME(store_codes)(call, key, value, slot);
#if !IS_BFLOAT16
  if (!call->is_float16) return;
  narrow_float16s(key, (uint16_t *)call->keys + slot * kv_size, kv_size);
  narrow_float16s(value, (uint16_t *)call->values + slot * kv_size, kv_size);
#endif
}

/* heads: [num_tokens, num_heads + 2 * num_kv_heads, head_dim]: query, key and value heads. cosines and sines: [positions,
   half], or null for no rotation; those of queries are `query_row` rows later. keys, values: [slots, num_kv_heads, head_dim],
   codes if there are scales [slots, num_kv_heads], float16 if `is_float16`, which is so for elements of float32 alone. query_weight, key_weight, value_weight: [head_dim], or null for no norm.
   Without `keys` the key and value heads, if there are any, stay in `heads`, as queries do. */
PUBLIC void NAME(rotate_store)(element *heads, const float *cosines, const float *sines, const int32_t *positions,
                           const int64_t *slots, void *keys, void *values, uint16_t *key_scales,
                           uint16_t *value_scales, const element *query_weight, const element *key_weight,
                           const element *value_weight, int64_t num_tokens, int64_t num_heads, int64_t num_kv_heads,
                           int64_t head_dim, int64_t half, int64_t query_row, float eps, int64_t is_float16) {
  NAME(rotate_store_call)
  call = {heads, cosines, sines, positions, slots, keys, values, key_scales, value_scales, query_weight, key_weight,
          value_weight, num_heads, num_kv_heads, head_dim, half, query_row, eps, is_float16};
  run_items(num_tokens, num_tokens * (num_heads + 2 * num_kv_heads) * head_dim, NAME(rotate_store_token), &call);
}
