/* Rows of the embeddings: see kernels/formats/embed.py. */

typedef struct {
  const int32_t *token_ids, *positions;
  const element *tokens, *places;
  element *out;
  int64_t size;
  int is_packed;
} NAME(embed_call);

/* Copies a row of a table that is packed for packed_linear. */
INLINE void NAME(copy_packed_row)(const element *packed, int64_t row, element *out, int64_t size) {
  enum { ROWS = 32, STEP = 4 / sizeof(element) };
  const element *in = packed + row / ROWS * ROWS * size + row % ROWS * STEP;
  for (int64_t i = 0; i < size; i += STEP) memcpy(out + i, in + ROWS * i, STEP * sizeof(element));
}

static void NAME(embed_token)(const void *data, int64_t token) {
  const NAME(embed_call) *call = data;
  const int64_t size = call->size;
  const int64_t row = call->token_ids[token];
  element *out = call->out + token * size;
  if (call->is_packed)
    NAME(copy_packed_row)(call->tokens, row, out, size);
  else
    memcpy(out, call->tokens + row * size, (size_t)size * sizeof(element));
  if (!call->places) return;
  const element *place = call->places + call->positions[token] * size;
  SIMD for (int64_t i = 0; i < size; i++) out[i] = NARROW(WIDEN(out[i]) + WIDEN(place[i]));
}

/* tokens: [vocabulary, size], plain or as pack_linear packs it; places (or null): [positions, size]; out:
   [num_tokens, size]. */
PUBLIC void NAME(embed)(const int32_t *token_ids, const int32_t *positions, const element *tokens,
                        const element *places, element *out, int64_t num_tokens, int64_t size,
                        int64_t is_packed) {
  NAME(embed_call) call = {token_ids, positions, tokens, places, out, size, is_packed != 0};
  run_items(num_tokens, num_tokens * size, NAME(embed_token), &call);
}
