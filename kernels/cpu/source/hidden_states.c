/* Final hidden states in slots, and what a head of multi-token prediction reads: see
   kernels/operations/hidden_states.py. */

static void NAME(store_hidden_token)(const void *data, int64_t token) {
  const NAME(store_hidden_arguments) *of = data;
  const int64_t slot = of->slots[token], size = of->size;
  if (slot >= 0) memcpy(of->kept + slot * size, of->x + token * size, (size_t)size * sizeof(element));
}

ITEM_OPERATION(store_hidden, store_hidden_arguments, of->num_tokens, of->num_tokens * of->size, store_hidden_token)

static void NAME(join_hidden_token)(const void *data, int64_t token) {
  const NAME(store_hidden_arguments) *of = data;
  const int64_t slot = of->slots[token], size = of->size;
  element *out = of->out + 2 * token * size;
  memcpy(out, of->x + token * size, (size_t)size * sizeof(element));
  memcpy(out + size, of->kept + (slot < 0 ? 0 : slot) * size, (size_t)size * sizeof(element));
  const NAME(layer_norm_arguments) embedding = {.x = out, .weight = of->embedding_weight, .out = out, .size = size, .eps = of->eps};
  const NAME(layer_norm_arguments) hidden = {.x = out + size, .weight = of->hidden_weight, .out = out + size, .size = size, .eps = of->eps};
  NAME(rms_norm_token)(&embedding, 0);
  NAME(rms_norm_token)(&hidden, 0);
}

ITEM_OPERATION(join_hidden, store_hidden_arguments, of->num_tokens, 2 * of->num_tokens * of->size, join_hidden_token)
