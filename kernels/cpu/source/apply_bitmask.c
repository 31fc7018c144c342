/* Masks tokens that a grammar does not allow: see kernels/operations/apply_bitmask.py. */

#if !IS_BFLOAT16
typedef struct {
  float *logits;
  const int64_t *rows;
  const uint32_t *bitmask;
  int64_t vocab_size;
} apply_bitmask_call;

static void NAME(apply_bitmask_item)(const void *data, int64_t item) {
  const apply_bitmask_call *call = data;
  const int64_t vocab_size = call->vocab_size, num_words = (vocab_size + 31) / 32;
  float *logits = call->logits + call->rows[item] * vocab_size;
  const uint32_t *words = call->bitmask + item * num_words;
  for (int64_t word = 0; word < num_words; word++) {
    const uint32_t bits = words[word];
    const int64_t first = word * 32, rest = vocab_size - first, size = rest < 32 ? rest : 32;
    if (bits == 0xffffffffu) continue;
    float *out = logits + first;
    if (bits == 0)
      for (int64_t i = 0; i < size; i++) out[i] = -INFINITY;
    else
      SIMD for (int32_t i = 0; i < (int32_t)size; i++) out[i] = bits >> i & 1 ? out[i] : -INFINITY;
  }
}

/* logits: [rows, vocab_size], bitmask: [num_rows, words], one row for each index in `rows`. */
PUBLIC void NAME(apply_bitmask)(float *logits, const int64_t *rows, const uint32_t *bitmask, int64_t num_rows,
                                int64_t vocab_size) {
  const apply_bitmask_call call = {logits, rows, bitmask, vocab_size};
  run_items(num_rows, num_rows * vocab_size, NAME(apply_bitmask_item), &call);
}
#endif
