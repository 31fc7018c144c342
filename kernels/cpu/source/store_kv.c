/* Rotary positions and the writing of K and V in one pass: kernels/rotate_store.py says what it does. */

typedef struct {
  element *query;
  const element *key, *value;
  const float *cosines, *sines;
  const int32_t *positions;
  const int64_t *slots;
  kv_element *keys, *values;
  int64_t token_stride, num_heads, num_kv_heads, head_dim;
} NAME(store_kv_call);

INLINE void NAME(rotate_head)(const element *in, element *out, const float *cosines, const float *sines, int64_t half) {
  SIMD for (int64_t i = 0; i < half; i++) {
    float first = WIDEN(in[i]), second = WIDEN(in[i + half]);
    out[i] = NARROW(first * cosines[i] - second * sines[i]);
    out[i + half] = NARROW(second * cosines[i] + first * sines[i]);
  }
}

static void NAME(store_kv_token)(const void *data, int64_t token) {
  const NAME(store_kv_call) *call = data;
  const int64_t head_dim = call->head_dim, half = head_dim / 2, kv_size = call->num_kv_heads * head_dim;
  const int64_t slot = call->slots[token];
  const element *key = call->key + token * call->token_stride;
  const float *cosines = 0, *sines = 0;
  if (call->cosines) {
    cosines = call->cosines + call->positions[token] * half;
    sines = call->sines + call->positions[token] * half;
    element *query = call->query + token * call->token_stride;
    for (int64_t head = 0; head < call->num_heads; head++)
      NAME(rotate_head)(query + head * head_dim, query + head * head_dim, cosines, sines, half);
  }
  if (slot < 0) return;
  memcpy(call->values + slot * kv_size, call->value + token * call->token_stride, kv_size * sizeof(element));
  element *out = call->keys + slot * kv_size;
  if (!cosines) {
    memcpy(out, key, kv_size * sizeof(element));
    return;
  }
  for (int64_t head = 0; head < call->num_kv_heads; head++)
    NAME(rotate_head)(key + head * head_dim, out + head * head_dim, cosines, sines, half);
}

/* query, key, value: the first head of the first token; tokens are `token_stride` elements apart, heads `head_dim`.
   cosines and sines: [positions, head_dim / 2], or null for no rotation. keys, values: [slots, num_kv_heads, head_dim]. */
PUBLIC void NAME(store_kv)(element *query, const element *key, const element *value, const float *cosines,
                           const float *sines, const int32_t *positions, const int64_t *slots, element *keys,
                           element *values, int64_t num_tokens, int64_t token_stride, int64_t num_heads,
                           int64_t num_kv_heads, int64_t head_dim) {
  NAME(store_kv_call)
  call = {query, key, value, cosines, sines, positions, slots, keys, values, token_stride, num_heads, num_kv_heads, head_dim};
  run_items(num_tokens, num_tokens * token_stride, NAME(store_kv_token), &call);
}
