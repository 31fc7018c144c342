/* The most likely token: kernels/operations/sample.py says what it does. */

#ifndef SLUICE_GREEDY
#define SLUICE_GREEDY
enum { GREEDY_PART = 4096 };

typedef struct {
  float best;
  int32_t is_finite;
} greedy_part;
#endif

typedef struct {
  const element *logits;
  greedy_part *parts;
  int64_t num_parts, vocab_size;
} NAME(greedy_call);

static void NAME(greedy_item)(const void *data, int64_t item) {
  const NAME(greedy_call) *call = data;
  const int64_t row = item / call->num_parts, first = item % call->num_parts * GREEDY_PART;
  const int64_t rest = call->vocab_size - first, size = rest < GREEDY_PART ? rest : GREEDY_PART;
  const element *logits = call->logits + row * call->vocab_size + first;
  float best = -INFINITY;
  int32_t num_odd = 0;
  _Pragma("omp simd reduction(max : best) reduction(+ : num_odd)") for (int64_t i = 0; i < size; i++) {
    float x = WIDEN(logits[i]);
    best = x > best ? x : best;
    num_odd += (bits_of(x) & 0x7f800000u) == 0x7f800000u;
  }
  call->parts[item] = (greedy_part){best, num_odd == 0};
}

/* logits: [num_rows, vocab_size]; tokens: the first of the largest, -1 where a logit of the row is not finite.
   Returns 0, or -1 without memory. */
PUBLIC int NAME(greedy)(const element *logits, int64_t *tokens, int64_t num_rows, int64_t vocab_size) {
  const int64_t num_parts = (vocab_size + GREEDY_PART - 1) / GREEDY_PART;
  if (num_rows == 0) return 0;
  greedy_part *parts = malloc((size_t)(num_rows * num_parts) * sizeof *parts);
  if (!parts) return -1;
  NAME(greedy_call) call = {logits, parts, num_parts, vocab_size};
  run_items(num_rows * num_parts, num_rows * vocab_size, NAME(greedy_item), &call);
  for (int64_t row = 0; row < num_rows; row++) {
    const greedy_part *mine = parts + row * num_parts;
    int64_t best = 0;
    int is_finite = 1;
    for (int64_t part = 0; part < num_parts; part++) {
      is_finite &= mine[part].is_finite;
      if (mine[part].best > mine[best].best) best = part;
    }
    tokens[row] = -1;
    for (int64_t i = best * GREEDY_PART; is_finite && i < vocab_size; i++)
      if (WIDEN(logits[row * vocab_size + i]) == mine[best].best) {
        tokens[row] = i;
        break;
      }
  }
  free(parts);
  return 0;
}
