/* Masks tokens that a grammar does not allow: see kernels/operations/apply_bitmask.py. */

#if !IS_BFLOAT16
static void NAME(apply_bitmask_item)(const void *data, int64_t item) {
  const NAME(apply_bitmask_arguments) *of = data;
  const int64_t vocab_size = of->vocab_size, num_words = (vocab_size + 31) / 32;
  float *logits = of->logits + of->rows[item] * vocab_size;
  const uint32_t *words = of->bitmask + item * num_words;
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

ITEM_OPERATION(apply_bitmask, apply_bitmask_arguments, of->num_rows, of->num_rows * of->vocab_size, apply_bitmask_item)
#endif
