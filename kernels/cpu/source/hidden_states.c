/* Final hidden states in slots, and what a head of multi-token prediction reads: see
   kernels/operations/hidden_states.py. */

typedef struct {
  const element *in;
  element *kept, *out;
  const int64_t *slots;
  const element *embedding_weight, *hidden_weight;
  int64_t size;
  float eps;
} NAME(hidden_call);

static void NAME(store_hidden_token)(const void *data, int64_t token) {
  const NAME(hidden_call) *call = data;
  const int64_t slot = call->slots[token], size = call->size;
  if (slot >= 0) memcpy(call->kept + slot * size, call->in + token * size, (size_t)size * sizeof(element));
}

/* hidden: [num_tokens, size]; kept: [slots, size]. */
PUBLIC void NAME(store_hidden)(const element *hidden, const int64_t *slots, element *kept, int64_t num_tokens, int64_t size) {
  const NAME(hidden_call) call = {hidden, kept, 0, slots, 0, 0, size, 0.0f};
  run_items(num_tokens, num_tokens * size, NAME(store_hidden_token), &call);
}

static void NAME(join_hidden_token)(const void *data, int64_t token) {
  const NAME(hidden_call) *call = data;
  const int64_t slot = call->slots[token], size = call->size;
  element *out = call->out + 2 * token * size;
  memcpy(out, call->in + token * size, (size_t)size * sizeof(element));
  memcpy(out + size, call->kept + (slot < 0 ? 0 : slot) * size, (size_t)size * sizeof(element));
  const NAME(norm_call) embedding = {out, 0, call->embedding_weight, 0, out, size, size, call->eps};
  const NAME(norm_call) hidden = {out + size, 0, call->hidden_weight, 0, out + size, size, size, call->eps};
  NAME(rms_norm_token)(&embedding, 0);
  NAME(rms_norm_token)(&hidden, 0);
}

/* embedded: [num_tokens, size]; kept: [slots, size]; out: [num_tokens, 2, size]. */
PUBLIC void NAME(join_hidden)(const element *embedded, element *kept, const int64_t *slots, const element *embedding_weight,
                              const element *hidden_weight, element *out, int64_t num_tokens, int64_t size, float eps) {
  const NAME(hidden_call) call = {embedded, kept, out, slots, embedding_weight, hidden_weight, size, eps};
  run_items(num_tokens, 2 * num_tokens * size, NAME(join_hidden_token), &call);
}
