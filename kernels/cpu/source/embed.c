/* Rows of the embeddings: see kernels/formats/embed.py. */

/* Copies a row of a table that is packed for packed_linear. */
INLINE void NAME(copy_packed_row)(const element *packed, int64_t row, element *out, int64_t size) {
  enum { ROWS = 32, STEP = 4 / sizeof(element) };
  const element *in = packed + row / ROWS * ROWS * size + row % ROWS * STEP;
  for (int64_t i = 0; i < size; i += STEP) memcpy(out + i, in + ROWS * i, STEP * sizeof(element));
}

static void NAME(embed_token)(const void *data, int64_t token) {
  const NAME(embed_arguments) *of = data;
  const int64_t size = of->size;
  const int64_t row = of->token_ids[token];
  element *out = of->out + token * size;
  if (of->is_packed)
    NAME(copy_packed_row)(of->tokens, row, out, size);
  else
    memcpy(out, of->tokens + row * size, (size_t)size * sizeof(element));
  if (!of->places) return;
  const element *place = of->places + of->positions[token] * size;
  SIMD for (int64_t i = 0; i < size; i++) out[i] = NARROW(WIDEN(out[i]) + WIDEN(place[i]));
}

ITEM_OPERATION(embed, embed_arguments, of->num_tokens, of->num_tokens * of->size, embed_token)
