/* Gates on the values of attention and of recurrent layers: see kernels/operations/gated_norm.py and sigmoid_gate.py. */

/* Writes `factor` times the sigmoid of the gate for each value, times the gate itself with `is_silu`. */
INLINE float NAME(opened)(element gate, const int is_silu) {
  const float x = WIDEN(gate);
  return times_sigmoid(is_silu ? x : 1.0f, -LOG2_E * x);
}

static void NAME(sigmoid_gate_token)(const void *data, int64_t token) {
  const NAME(gated_norm_arguments) *of = data;
  element *values = of->values + token * of->stride;
  const element *gate = of->gate + token * of->gate_stride;
  SIMD for (int64_t i = 0; i < of->size; i++) values[i] = NARROW(WIDEN(values[i]) * NAME(opened)(gate[i], 0));
}

/* Normalizes one group; a norm before the gate is a gate of 1 before the norm. */
INLINE void NAME(norm_group)(const NAME(gated_norm_arguments) *of, element *values, const element *gate, const element *weight,
                             const int norms_first) {
  const int64_t size = of->group_size;
  float squares = 0.0f;
  SIMD_SUM(squares) for (int64_t i = 0; i < size; i++) {
    const float value = WIDEN(values[i]) * (norms_first ? 1.0f : NAME(opened)(gate[i], 1));
    squares += value * value;
  }
  const float scale = 1.0f / sqrtf(squares / (float)size + of->eps);
  SIMD for (int64_t i = 0; i < size; i++)
      values[i] = NARROW(WIDEN(values[i]) * NAME(opened)(gate[i], 1) * scale * WIDEN(weight[i]));
}

static void NAME(gated_norm_token)(const void *data, int64_t token) {
  const NAME(gated_norm_arguments) *of = data;
  element *values = of->values + token * of->stride;
  const element *gate = of->gate + token * of->gate_stride, *weight = of->weight;
  if (!weight) SIMD for (int64_t i = 0; i < of->size; i++) values[i] = NARROW(WIDEN(values[i]) * NAME(opened)(gate[i], 1));
  else for (int64_t i = 0; i < of->size; i += of->group_size) {
    if (of->norms_first) NAME(norm_group)(of, values + i, gate + i, weight + i % of->weight_size, 1);
    else NAME(norm_group)(of, values + i, gate + i, weight + i % of->weight_size, 0);
  }
}

ITEM_OPERATION(gated_norm, gated_norm_arguments, of->num_tokens, of->num_tokens * of->size * 8, gated_norm_token)
ITEM_OPERATION(sigmoid_gate, gated_norm_arguments, of->num_tokens, of->num_tokens * of->size * 4, sigmoid_gate_token)
