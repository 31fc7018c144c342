/* Normalizes and rotates heads and stores K and V, in one pass: see kernels/operations/rotate_store.py. */

INLINE void NAME(norm_heads)(element *heads, const element *weight, int64_t num_heads, int64_t head_dim, float eps) {
  const NAME(layer_norm_arguments) norm = {.x = heads, .weight = weight, .out = heads, .size = head_dim, .stride = head_dim, .eps = eps};
  for (int64_t head = 0; head < num_heads; head++) NAME(rms_norm_token)(&norm, head);
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

/* Returns the bits of the largest magnitude; NaN is larger than any number. */
INLINE uint32_t NAME(largest_magnitude)(const element *x, const int64_t count) {
  uint32_t largest = 0;
  _Pragma("omp simd reduction(max : largest)") for (int64_t i = 0; i < count; i++) {
    const uint32_t magnitude = bits_of(WIDEN(x[i])) & 0x7fffffffu;
    largest = magnitude > largest ? magnitude : largest;
  }
  return largest;
}

/* Writes a head as codes from -127 to 127; returns their scale, which is not finite if an element is not. */
INLINE uint16_t NAME(quantize_head)(const element *in, int8_t *codes, int64_t head_dim) {
  const uint16_t scale = narrow_bfloat16(float_of(NAME(largest_magnitude)(in, head_dim)) / 127.0f);
  const float to_integer = 12582912.0f, unit = widen_bfloat16(scale), divisor = unit > 0.0f ? unit : 1.0f;
  SIMD for (int64_t i = 0; i < head_dim; i++) {
    float code = WIDEN(in[i]) / divisor;
    code = code < -127.0f ? -127.0f : code > 127.0f ? 127.0f : code;
    codes[i] = (int8_t)bits_of(code + to_integer);
  }
  return scale;
}

INLINE void NAME(store_codes)(const NAME(rotate_store_arguments) *of, const element *key, const element *value, int64_t slot) {
  for (int64_t head = 0; head < of->num_kv_heads; head++, key += of->head_dim, value += of->head_dim) {
    const int64_t place = slot * of->num_kv_heads + head, at = place * of->head_dim;
    of->key_scales[place] = NAME(quantize_head)(key, (int8_t *)of->keys + at, of->head_dim);
    of->value_scales[place] = NAME(quantize_head)(value, (int8_t *)of->values + at, of->head_dim);
  }
}

/* Writes a token's heads to `out`, normalized if there is a weight and rotated if there are cosines; may change `in`. */
INLINE void NAME(turn_heads)(const NAME(rotate_store_arguments) *of, element *in, element *out, const element *weight,
                             int64_t num_heads, const float *cosines, const float *sines) {
  const int64_t head_dim = of->head_dim, half = of->half;
  const float eps = of->eps;
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
  const NAME(rotate_store_arguments) *of = data;
  const int64_t head_dim = of->head_dim, kv_size = of->num_kv_heads * head_dim;
  const int64_t slot = of->keys ? of->slots[token] : 0, query_size = of->num_heads * head_dim;
  element *query = of->heads + token * (query_size + 2 * kv_size), *key = query + query_size;
  element *value = key + kv_size;
  const float *cosines = of->cosines ? of->cosines + of->positions[token] * of->half : 0;
  const float *sines = cosines ? of->sines + of->positions[token] * of->half : 0;
  const int64_t to_query = of->query_row * of->half;
  NAME(turn_heads)(of, query, query, of->query_weight, of->num_heads, cosines + to_query, sines + to_query);
  if (slot < 0 || !kv_size) return;
  const int stays = !of->keys || of->key_scales || of->is_float16;
  element *out = stays ? key : (element *)of->keys + slot * kv_size;
  NAME(turn_heads)(of, key, out, of->key_weight, of->num_kv_heads, cosines, sines);
  out = stays ? value : (element *)of->values + slot * kv_size;
  NAME(turn_heads)(of, value, out, of->value_weight, of->num_kv_heads, 0, 0);
  if (of->key_scales) NAME(store_codes)(of, key, value, slot);
#if !IS_BFLOAT16
  if (!of->is_float16) return;
  narrow_float16s(key, (uint16_t *)of->keys + slot * kv_size, kv_size);
  narrow_float16s(value, (uint16_t *)of->values + slot * kv_size, kv_size);
#endif
}

/* With no key/value heads only queries are turned. Without `keys` the key and value heads stay in `heads`, as queries do. */
ITEM_OPERATION(rotate_store, rotate_store_arguments, of->num_tokens,
               of->num_tokens * (of->num_heads + 2 * of->num_kv_heads) * of->head_dim, rotate_store_token)
