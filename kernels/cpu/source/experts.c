/* The routing of a mixture of experts: see kernels/operations/experts.py. */

#ifndef SLUICE_EXPERTS
#define SLUICE_EXPERTS
/* The most experts of a layer; kernels/arguments/routes.py repeats it. */
enum { MAX_EXPERTS = 1024 };
#endif

/* Sets ranks to -inf except those of the best groups. A group's score is its best rank, or the sum
   of its best two. */
static void NAME(keep_best_groups)(const NAME(route_tokens_arguments) *of, float *ranks) {
  const int64_t size = of->num_experts / of->num_groups;
  float sums[MAX_EXPERTS];
  for (int64_t group = 0; group < of->num_groups; group++) {
    float first = -INFINITY, second = -INFINITY;
    for (int64_t i = group * size; i < (group + 1) * size; i++) {
      if (ranks[i] > first) second = first, first = ranks[i];
      else if (ranks[i] > second) second = ranks[i];
    }
    sums[group] = size > 1 && of->num_best_of_group > 1 ? first + second : first;
  }
  for (int64_t k = 0; k < of->num_chosen_groups; k++) {
    int64_t best = -1;
    for (int64_t i = 0; i < of->num_groups; i++)
      if (!isnan(sums[i]) && (best < 0 || sums[i] > sums[best])) best = i;
    if (best >= 0) sums[best] = NAN; /* kept */
  }
  for (int64_t i = 0; i < of->num_experts; i++)
    if (!isnan(sums[i / size])) ranks[i] = -INFINITY;
}

/* Chooses the experts of a token, the best first; equal ones by their numbers. `rows` has these numbers meanwhile. */
static void NAME(route_token)(const void *data, int64_t token) {
  const NAME(route_tokens_arguments) *of = data;
  const element *logits = of->logits + token * of->num_experts;
  float scores[MAX_EXPERTS], ranks[MAX_EXPERTS], largest = -INFINITY, total = 0.0f, sum = 0.0f;
  for (int64_t i = 0; i < of->num_experts; i++) largest = WIDEN(logits[i]) > largest ? WIDEN(logits[i]) : largest;
  for (int64_t i = 0; i < of->num_experts; i++) {
    scores[i] = of->is_sigmoid ? 1.0f / (1.0f + expf(-WIDEN(logits[i]))) : expf(WIDEN(logits[i]) - largest);
    total += scores[i];
  }
  if (of->is_sigmoid) total = 1.0f;
  for (int64_t i = 0; i < of->num_experts; i++) {
    scores[i] /= total;
    ranks[i] = of->bias ? scores[i] + of->bias[i] : scores[i];
  }
  if (of->num_groups > 1) NAME(keep_best_groups)(of, ranks);
  for (int64_t k = 0; k < of->num_chosen; k++) {
    int64_t best = -1;
    for (int64_t i = 0; i < of->num_experts; i++)
      if (ranks[i] != -INFINITY && (best < 0 || ranks[i] > ranks[best])) best = i;
    if (best < 0) best = k; /* all others are infinitely bad */
    ranks[best] = -INFINITY;
    of->rows[token * of->num_chosen + k] = (int32_t)best;
    of->shares[token * of->num_chosen + k] = scores[best];
    sum += scores[best];
  }
  const float factor = of->is_renormalized ? of->scale / sum : of->scale;
  for (int64_t i = token * of->num_chosen; i < (token + 1) * of->num_chosen; i++)
    of->shares[i] *= factor * (of->scales ? of->scales[of->rows[i]] : 1.0f);
}

PUBLIC int NAME(route_tokens)(const NAME(route_tokens_arguments) *of) {
  const int64_t num_places = of->num_tokens * of->num_chosen;
  int32_t *rows = of->rows, *ends = of->ends;
  run_items(of->num_tokens, 8 * of->num_tokens * of->num_experts, NAME(route_token), of);
  memset(ends, 0, sizeof(int32_t) * (size_t)of->num_experts);
  for (int64_t i = 0; i < num_places; i++) ends[rows[i]]++;
  for (int64_t expert = 0, begin = 0; expert < of->num_experts; expert++) {
    const int32_t count = ends[expert];
    ends[expert] = (int32_t)begin; /* of the next token, which ends up as the end */
    begin += count;
  }
  for (int64_t i = 0; i < num_places; i++) {
    rows[i] = ends[rows[i]]++;
    of->tokens[rows[i]] = (int32_t)(i / of->num_chosen);
  }
  return 0;
}

static void NAME(gather_row)(const void *data, int64_t row) {
  const NAME(gather_rows_arguments) *of = data;
  memcpy(of->out + row * of->size, of->x + of->rows[row] * of->size, sizeof(element) * (size_t)of->size);
}

/* Sets out to the rows of x that `rows` names. */
ITEM_OPERATION(gather_rows, gather_rows_arguments, of->num_rows, of->num_rows * of->size, gather_row)

/* Adds up a token's outputs in the order of its experts. */
static void NAME(combine_token)(const void *data, int64_t token) {
  enum { PIECE = 256 };
  const NAME(gather_rows_arguments) *of = data;
  element *out = of->out + token * of->size;
  const element *shared = of->shared ? of->shared + token * of->size : 0;
  const float gate = of->gates ? 1.0f / (1.0f + expf(-WIDEN(of->gates[token]))) : 1.0f;
  for (int64_t begin = 0; begin < of->size; begin += PIECE) {
    const int64_t count = of->size - begin < PIECE ? of->size - begin : PIECE;
    float sums[PIECE] = {0};
    if (shared) SIMD for (int64_t i = 0; i < count; i++) sums[i] = gate * WIDEN(shared[begin + i]);
    for (int64_t k = 0; k < of->num_chosen; k++) {
      const float share = of->shares[token * of->num_chosen + k];
      const element *x = of->x + of->rows[token * of->num_chosen + k] * of->size + begin;
      SIMD for (int64_t i = 0; i < count; i++) sums[i] += share * WIDEN(x[i]);
    }
    SIMD for (int64_t i = 0; i < count; i++) out[begin + i] = NARROW(sums[i]);
  }
}

/* Sets out to the sum of a token's rows of x times its shares. `shared` is added first; with gates, times the sigmoid of the
   gate. */
ITEM_OPERATION(combine_experts, gather_rows_arguments, of->num_rows, of->num_rows * of->num_chosen * of->size, combine_token)
