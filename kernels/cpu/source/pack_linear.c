/* Lays a linear layer's weight out as packed_linear reads it: kernels/packed_linear.py says how. */
#if IS_BFLOAT16 && defined(__AVX2__)

/* Pairs of inputs that are moved at once: the first cache holds where they come from and where they go. */
enum { PACK_BLOCK = 32, PACK_PAIRS = 64 };

typedef struct {
  const element *weight;
  element *packed;
  int64_t first, end, inputs;
  int is_transposed;
} pack_call;

INLINE void pack_pairs(const pack_call *call, int64_t block, int64_t pair, int64_t end_pair, const int is_transposed) {
  const int64_t begin = block * PACK_BLOCK, end = begin + PACK_BLOCK;
  const int64_t first = begin < call->first ? call->first : begin, last = end < call->end ? end : call->end;
  const int64_t outputs = call->end - call->first;
  element *out = call->packed + begin * call->inputs + 2 * (first - begin);
  if (is_transposed)
    for (; pair < end_pair; pair++) {
      const element *in = call->weight + 2 * pair * outputs + first - call->first;
      element *to = out + 2 * PACK_BLOCK * pair;
      for (int64_t i = 0; i < last - first; i++) to[2 * i] = in[i], to[2 * i + 1] = in[outputs + i];
    }
  else
    for (int64_t i = 0; i < last - first; i++) {
      const element *in = call->weight + (first - call->first + i) * call->inputs;
      for (int64_t p = pair; p < end_pair; p++) memcpy(out + 2 * (PACK_BLOCK * p + i), in + 2 * p, 2 * sizeof(element));
    }
}

static void pack_block(const void *data, int64_t item) {
  const pack_call *call = data;
  const int64_t block = call->first / PACK_BLOCK + item, pairs = call->inputs / 2;
  for (int64_t pair = 0; pair < pairs; pair += PACK_PAIRS) {
    const int64_t end = pair + PACK_PAIRS < pairs ? pair + PACK_PAIRS : pairs;
    if (call->is_transposed)
      pack_pairs(call, block, pair, end, 1);
    else
      pack_pairs(call, block, pair, end, 0);
  }
}

/* Sets the outputs [first, first + outputs) of packed [blocks, inputs / 2, 32, 2] from weight [outputs, inputs], or
   [inputs, outputs] where it is transposed. */
PUBLIC void NAME(pack_linear)(const element *weight, element *packed, int64_t first, int64_t outputs, int64_t inputs,
                              int64_t is_transposed) {
  const pack_call call = {weight, packed, first, first + outputs, inputs, is_transposed != 0};
  const int64_t num_blocks = (first + outputs + PACK_BLOCK - 1) / PACK_BLOCK - first / PACK_BLOCK;
  run_items(num_blocks, outputs * inputs, pack_block, &call);
}
#endif
