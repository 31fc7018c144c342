/* Packs a linear layer's weight for packed_linear: see kernels/operations/packed_linear.py. */
#if defined(__AVX2__)

#ifndef SLUICE_PACK
#define SLUICE_PACK
/* Steps of inputs moved at a time: the L1 cache holds both source and target. */
enum { PACK_BLOCK = 32, PACK_STEPS = 64 };
#endif

#define PACK_STEP (IS_BFLOAT16 ? 2 : 1) /* inputs stored together */

typedef struct {
  const element *weight;
  element *packed;
  int64_t first, end, inputs;
  int is_transposed;
} NAME(pack_call);

INLINE void NAME(pack_steps)(const NAME(pack_call) *call, int64_t block, int64_t step, int64_t end_step,
                             const int is_transposed) {
  const int64_t begin = block * PACK_BLOCK, end = begin + PACK_BLOCK;
  const int64_t first = begin < call->first ? call->first : begin, last = end < call->end ? end : call->end;
  const int64_t outputs = call->end - call->first;
  element *out = call->packed + begin * call->inputs + PACK_STEP * (first - begin);
  if (is_transposed)
    for (; step < end_step; step++) {
      const element *in = call->weight + PACK_STEP * step * outputs + first - call->first;
      element *to = out + PACK_STEP * PACK_BLOCK * step;
      for (int64_t i = 0; i < last - first; i++)
        for (int s = 0; s < PACK_STEP; s++) to[PACK_STEP * i + s] = in[s * outputs + i];
    }
  else
    for (int64_t i = 0; i < last - first; i++) {
      const element *in = call->weight + (first - call->first + i) * call->inputs;
      for (int64_t s = step; s < end_step; s++)
        memcpy(out + PACK_STEP * (PACK_BLOCK * s + i), in + PACK_STEP * s, PACK_STEP * sizeof(element));
    }
}

static void NAME(pack_outputs)(const void *data, int64_t item) {
  const NAME(pack_call) *call = data;
  const int64_t block = call->first / PACK_BLOCK + item, steps = call->inputs / PACK_STEP;
  for (int64_t step = 0; step < steps; step += PACK_STEPS) {
    const int64_t end = step + PACK_STEPS < steps ? step + PACK_STEPS : steps;
    if (call->is_transposed)
      NAME(pack_steps)(call, block, step, end, 1);
    else
      NAME(pack_steps)(call, block, step, end, 0);
  }
}

/* Sets the outputs [first, first + outputs) of packed [blocks, inputs / PACK_STEP, 32, PACK_STEP] from weight
   [outputs, inputs], or [inputs, outputs] if it is transposed. */
PUBLIC void NAME(pack_linear)(const element *weight, element *packed, int64_t first, int64_t outputs, int64_t inputs,
                              int64_t is_transposed) {
  const NAME(pack_call) call = {weight, packed, first, first + outputs, inputs, is_transposed != 0};
  const int64_t num_blocks = (first + outputs + PACK_BLOCK - 1) / PACK_BLOCK - first / PACK_BLOCK;
  run_items(num_blocks, outputs * inputs, NAME(pack_outputs), &call);
}
#undef PACK_STEP
#endif
