/* Packs a linear layer's weight for packed_linear: see kernels/operations/packed_linear.py. */
#if defined(__AVX2__)

#ifndef SLUICE_PACK
#define SLUICE_PACK
/* Steps of inputs moved at a time: the L1 cache holds both source and target. */
enum { PACK_BLOCK = 32, PACK_STEPS = 64 };
#endif

#define PACK_STEP (IS_BFLOAT16 ? 2 : 1) /* inputs stored together */

INLINE void NAME(pack_steps)(const NAME(pack_linear_arguments) *of, int64_t block, int64_t step, int64_t end_step,
                             const int is_transposed) {
  const int64_t begin = block * PACK_BLOCK, end = begin + PACK_BLOCK;
  const int64_t outputs = of->outputs, beyond = of->first + outputs;
  const int64_t first = begin < of->first ? of->first : begin, last = end < beyond ? end : beyond;
  element *out = of->packed + begin * of->inputs + PACK_STEP * (first - begin);
  if (is_transposed)
    for (; step < end_step; step++) {
      const element *in = of->weight + PACK_STEP * step * outputs + first - of->first;
      element *to = out + PACK_STEP * PACK_BLOCK * step;
      for (int64_t i = 0; i < last - first; i++)
        for (int s = 0; s < PACK_STEP; s++) to[PACK_STEP * i + s] = in[s * outputs + i];
    }
  else
    for (int64_t i = 0; i < last - first; i++) {
      const element *in = of->weight + (first - of->first + i) * of->inputs;
      for (int64_t s = step; s < end_step; s++)
        memcpy(out + PACK_STEP * (PACK_BLOCK * s + i), in + PACK_STEP * s, PACK_STEP * sizeof(element));
    }
}

static void NAME(pack_outputs)(const void *data, int64_t item) {
  const NAME(pack_linear_arguments) *of = data;
  const int64_t block = of->first / PACK_BLOCK + item, steps = of->inputs / PACK_STEP;
  for (int64_t step = 0; step < steps; step += PACK_STEPS) {
    const int64_t end = step + PACK_STEPS < steps ? step + PACK_STEPS : steps;
    if (of->is_transposed)
      NAME(pack_steps)(of, block, step, end, 1);
    else
      NAME(pack_steps)(of, block, step, end, 0);
  }
}

ITEM_OPERATION(pack_linear, pack_linear_arguments,
               (of->first + of->outputs + PACK_BLOCK - 1) / PACK_BLOCK - of->first / PACK_BLOCK,
               of->outputs * of->inputs, pack_outputs)
#undef PACK_STEP
#endif
