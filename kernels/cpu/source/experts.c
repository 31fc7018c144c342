/* The routing of a mixture of experts: see kernels/operations/experts.py. */

#ifndef SLUICE_EXPERTS
#define SLUICE_EXPERTS
/* The most experts of a layer; kernels/arguments/routes.py repeats it. */
enum { MOST_EXPERTS = 1024 };
#endif

typedef struct {
  const element *logits;
  const float *bias, *scales; /* [num_experts], or null */
  float *shares;
  int32_t *chosen; /* [num_tokens, num_chosen] */
  int64_t num_experts, num_chosen, num_groups, num_chosen_groups, is_sigmoid, is_renormalized;
  float scale;
} NAME(route_call);

/* Sets ranks to -inf except those of the best groups. A group's score is the sum of its best two ranks. */
static void NAME(keep_best_groups)(const NAME(route_call) *call, float *ranks) {
  const int64_t size = call->num_experts / call->num_groups;
  float sums[MOST_EXPERTS];
  for (int64_t group = 0; group < call->num_groups; group++) {
    float first = -INFINITY, second = -INFINITY;
    for (int64_t i = group * size; i < (group + 1) * size; i++) {
      if (ranks[i] > first) second = first, first = ranks[i];
      else if (ranks[i] > second) second = ranks[i];
    }
    sums[group] = size > 1 ? first + second : first;
  }
  for (int64_t k = 0; k < call->num_chosen_groups; k++) {
    int64_t best = -1;
    for (int64_t i = 0; i < call->num_groups; i++)
      if (!isnan(sums[i]) && (best < 0 || sums[i] > sums[best])) best = i;
    if (best >= 0) sums[best] = NAN; /* kept */
  }
  for (int64_t i = 0; i < call->num_experts; i++)
    if (!isnan(sums[i / size])) ranks[i] = -INFINITY;
}

/* Chooses the experts of a token, the best first; equal ones by their numbers. */
static void NAME(route_token)(const void *data, int64_t token) {
  const NAME(route_call) *call = data;
  const element *logits = call->logits + token * call->num_experts;
  float scores[MOST_EXPERTS], ranks[MOST_EXPERTS], largest = -INFINITY, total = 0.0f, sum = 0.0f;
  for (int64_t i = 0; i < call->num_experts; i++) largest = WIDEN(logits[i]) > largest ? WIDEN(logits[i]) : largest;
  for (int64_t i = 0; i < call->num_experts; i++) {
    scores[i] = call->is_sigmoid ? 1.0f / (1.0f + expf(-WIDEN(logits[i]))) : expf(WIDEN(logits[i]) - largest);
    total += scores[i];
  }
  if (call->is_sigmoid) total = 1.0f;
  for (int64_t i = 0; i < call->num_experts; i++) {
    scores[i] /= total;
    ranks[i] = call->bias ? scores[i] + call->bias[i] : scores[i];
  }
  if (call->num_groups > 1) NAME(keep_best_groups)(call, ranks);
  for (int64_t k = 0; k < call->num_chosen; k++) {
    int64_t best = -1;
    for (int64_t i = 0; i < call->num_experts; i++)
      if (ranks[i] != -INFINITY && (best < 0 || ranks[i] > ranks[best])) best = i;
    if (best < 0) best = k; /* all others are infinitely bad */
    ranks[best] = -INFINITY;
    call->chosen[token * call->num_chosen + k] = (int32_t)best;
    call->shares[token * call->num_chosen + k] = scores[best];
    sum += scores[best];
  }
  const float factor = call->is_renormalized ? call->scale / sum : call->scale;
  for (int64_t i = token * call->num_chosen; i < (token + 1) * call->num_chosen; i++)
    call->shares[i] *= factor * (call->scales ? call->scales[call->chosen[i]] : 1.0f);
}

/* logits: [num_tokens, num_experts], bias and scales: [num_experts], or null. Sets shares and rows [num_tokens, num_chosen];
   rows are the places of tokens among those of all experts, sorted by expert, then by token; `tokens` [num_tokens * num_chosen] has the
   token in each place, `ends` [num_experts] the end of each expert's places. */
PUBLIC void NAME(route_tokens)(const element *logits, const float *bias, const float *scales, float *shares, int32_t *rows,
                               int32_t *tokens, int32_t *ends, int64_t num_tokens, int64_t num_experts, int64_t num_chosen,
                               int64_t num_groups, int64_t num_chosen_groups, int64_t is_sigmoid, int64_t is_renormalized, float scale) {
  const NAME(route_call) call = {logits,     bias,       scales,            shares,     rows,            num_experts,
                                 num_chosen, num_groups, num_chosen_groups, is_sigmoid, is_renormalized, scale};
  run_items(num_tokens, 8 * num_tokens * num_experts, NAME(route_token), &call);
  memset(ends, 0, sizeof(int32_t) * (size_t)num_experts);
  for (int64_t i = 0; i < num_tokens * num_chosen; i++) ends[rows[i]]++;
  for (int64_t expert = 0, begin = 0; expert < num_experts; expert++) {
    const int32_t count = ends[expert];
    ends[expert] = (int32_t)begin; /* of the next token, which ends up as the end */
    begin += count;
  }
  for (int64_t i = 0; i < num_tokens * num_chosen; i++) {
    rows[i] = ends[rows[i]]++;
    tokens[rows[i]] = (int32_t)(i / num_chosen);
  }
}

typedef struct {
  const element *x, *shared, *gates;
  const float *shares;
  const int32_t *rows;
  element *out;
  int64_t size, num_chosen;
} NAME(expert_rows_call);

static void NAME(gather_row)(const void *data, int64_t row) {
  const NAME(expert_rows_call) *call = data;
  memcpy(call->out + row * call->size, call->x + call->rows[row] * call->size, sizeof(element) * (size_t)call->size);
}

/* Sets out [num_rows, size] to the rows of x that `tokens` [num_rows] names. */
PUBLIC void NAME(gather_rows)(const element *x, const int32_t *tokens, element *out, int64_t num_rows, int64_t size) {
  const NAME(expert_rows_call) call = {x, 0, 0, 0, tokens, out, size, 1};
  run_items(num_rows, num_rows * size, NAME(gather_row), &call);
}

/* Adds up a token's outputs in the order of its experts. */
static void NAME(combine_token)(const void *data, int64_t token) {
  enum { PIECE = 256 };
  const NAME(expert_rows_call) *call = data;
  element *out = call->out + token * call->size;
  const element *shared = call->shared ? call->shared + token * call->size : 0;
  const float gate = call->gates ? 1.0f / (1.0f + expf(-WIDEN(call->gates[token]))) : 1.0f;
  for (int64_t begin = 0; begin < call->size; begin += PIECE) {
    const int64_t count = call->size - begin < PIECE ? call->size - begin : PIECE;
    float sums[PIECE] = {0};
    if (shared) SIMD for (int64_t i = 0; i < count; i++) sums[i] = gate * WIDEN(shared[begin + i]);
    for (int64_t k = 0; k < call->num_chosen; k++) {
      const float share = call->shares[token * call->num_chosen + k];
      const element *x = call->x + call->rows[token * call->num_chosen + k] * call->size + begin;
      SIMD for (int64_t i = 0; i < count; i++) sums[i] += share * WIDEN(x[i]);
    }
    SIMD for (int64_t i = 0; i < count; i++) out[begin + i] = NARROW(sums[i]);
  }
}

/* Sets out [num_tokens, size] to the sum of a token's rows of x times its shares. `shared` [num_tokens, size], which may be
   null or `out`, is added first; with gates [num_tokens], times the sigmoid of the gate. */
PUBLIC void NAME(combine_experts)(const element *x, const float *shares, const int32_t *rows, const element *shared,
                                  const element *gates, element *out, int64_t num_tokens, int64_t num_chosen, int64_t size) {
  const NAME(expert_rows_call) call = {x, shared, gates, shares, rows, out, size, num_chosen};
  run_items(num_tokens, num_tokens * num_chosen * size, NAME(combine_token), &call);
}
