/* Gates on the values of attention and of recurrent layers: see kernels/operations/gated_norm.py and sigmoid_gate.py. */

typedef struct {
  element *values;
  const element *gate, *weight;
  int64_t size, stride, gate_stride, group_size, weight_size, norms_first;
  float eps;
} NAME(gate_call);

/* Writes `factor` times the sigmoid of the gate for each value, times the gate itself with `is_silu`. */
INLINE float NAME(opened)(element gate, const int is_silu) {
  const float x = WIDEN(gate), power = -LOG2_E * x;
  return (is_silu ? x : 1.0f) / (1.0f + power_of_2(power > 126.0f ? 126.0f : power));
}

static void NAME(sigmoid_gate_token)(const void *data, int64_t token) {
  const NAME(gate_call) *call = data;
  element *values = call->values + token * call->stride;
  const element *gate = call->gate + token * call->gate_stride;
  SIMD for (int64_t i = 0; i < call->size; i++) values[i] = NARROW(WIDEN(values[i]) * NAME(opened)(gate[i], 0));
}

/* Normalizes one group; a norm before the gate is a gate of 1 before the norm. */
INLINE void NAME(norm_group)(const NAME(gate_call) *call, element *values, const element *gate, const element *weight,
                             const int norms_first) {
  const int64_t size = call->group_size;
  float squares = 0.0f;
  SIMD_SUM(squares) for (int64_t i = 0; i < size; i++) {
    const float value = WIDEN(values[i]) * (norms_first ? 1.0f : NAME(opened)(gate[i], 1));
    squares += value * value;
  }
  const float scale = 1.0f / sqrtf(squares / (float)size + call->eps);
  SIMD for (int64_t i = 0; i < size; i++)
      values[i] = NARROW(WIDEN(values[i]) * NAME(opened)(gate[i], 1) * scale * WIDEN(weight[i]));
}

static void NAME(gated_norm_token)(const void *data, int64_t token) {
  const NAME(gate_call) *call = data;
  element *values = call->values + token * call->stride;
  const element *gate = call->gate + token * call->gate_stride, *weight = call->weight;
  if (!weight) SIMD for (int64_t i = 0; i < call->size; i++) values[i] = NARROW(WIDEN(values[i]) * NAME(opened)(gate[i], 1));
  else for (int64_t i = 0; i < call->size; i += call->group_size) {
    if (call->norms_first) NAME(norm_group)(call, values + i, gate + i, weight + i % call->weight_size, 1);
    else NAME(norm_group)(call, values + i, gate + i, weight + i % call->weight_size, 0);
  }
}

/* values and gate: [num_tokens, size], rows that are `stride` and `gate_stride` elements apart; weight: [weight_size], which
   is `size` or `group_size`, or null for the gate alone. */
PUBLIC void NAME(gated_norm)(element *values, const element *gate, const element *weight, int64_t num_tokens, int64_t size,
                             int64_t stride, int64_t gate_stride, int64_t group_size, int64_t weight_size,
                             int64_t norms_first, float eps) {
  const NAME(gate_call) call = {values, gate, weight, size, stride, gate_stride, group_size, weight_size, norms_first, eps};
  run_items(num_tokens, num_tokens * size * 8, NAME(gated_norm_token), &call);
}

/* As gated_norm. */
PUBLIC void NAME(sigmoid_gate)(element *values, const element *gate, int64_t num_tokens, int64_t size, int64_t stride,
                               int64_t gate_stride) {
  const NAME(gate_call) call = {.values = values, .gate = gate, .size = size, .stride = stride, .gate_stride = gate_stride};
  run_items(num_tokens, num_tokens * size * 4, NAME(sigmoid_gate_token), &call);
}
