/* Rows of the embeddings: kernels/embed.py says what it does. */

typedef struct {
  const int32_t *token_ids, *positions;
  const element *tokens, *places;
  element *out;
  int64_t size;
} NAME(embed_call);

static void NAME(embed_token)(const void *data, int64_t token) {
  const NAME(embed_call) *call = data;
  const int64_t size = call->size;
  const element *row = call->tokens + call->token_ids[token] * size;
  element *out = call->out + token * size;
  if (!call->places) {
    memcpy(out, row, (size_t)size * sizeof(element));
    return;
  }
  const element *place = call->places + call->positions[token] * size;
  SIMD for (int64_t i = 0; i < size; i++) out[i] = NARROW(WIDEN(row[i]) + WIDEN(place[i]));
}

/* tokens: [vocabulary, size], places (or null): [positions, size]; out: [num_tokens, size]. */
PUBLIC void NAME(embed)(const int32_t *token_ids, const int32_t *positions, const element *tokens,
                        const element *places, element *out, int64_t num_tokens, int64_t size) {
  NAME(embed_call) call = {token_ids, positions, tokens, places, out, size};
  run_items(num_tokens, num_tokens * size, NAME(embed_token), &call);
}
