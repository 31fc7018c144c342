/* The recurrence of Mamba-2, one token after another: see kernels/operations/mamba_scan.py. A chunked form would have as many
   operations at this size of a matrix. */

#ifndef SLUICE_MAMBA_SCAN
#define SLUICE_MAMBA_SCAN
/* An item computes some rows of a matrix: PART_VALUES at most, of STATE_FLOATS at most, which are most models' whole matrix.
   Smaller items read more tokens for as much work. SCAN_TOKENS: how many time steps are computed at once. */
enum { STATE_FLOATS = 8192, PART_VALUES = 64, MOST_STATE = 256, SCAN_TOKENS = 16, SCAN_ROWS = 4 };

/* Writes `count` (at most SCAN_ROWS) rows of a matrix after a token, and their products with C to `products`, SCAN_ROWS numbers.
   `groups` has B and C; `added` are the factors of B. */
INLINE void advance_matrix(const float *from, float *to, const int count, int64_t size, float kept, const float *added,
                           const float *groups, float *products) {
  const float *b = groups, *c = groups + size;
  state_lanes sums[SCAN_ROWS] = {{0.0f}};
  lanes parts[SCAN_ROWS];
  int64_t d = 0;
  for (; d + STATE_LANES <= size; d += STATE_LANES) {
    const state_lanes b_lanes = LOAD_STATE(b + d), c_lanes = LOAD_STATE(c + d);
    for (int row = 0; row < count; row++) {
      const state_lanes next = LOAD_STATE(from + row * size + d) * kept + added[row] * b_lanes;
      *(state_lanes *)(to + row * size + d) = next;
      sums[row] += next * c_lanes;
    }
  }
  for (int row = 0; row < SCAN_ROWS; row++) parts[row] = as_lanes(sums[row]);
  sum_four(parts, products);
  for (; d < size; d++)
    for (int row = 0; row < count; row++) {
      const float next = from[row * size + d] * kept + added[row] * b[d];
      to[row * size + d] = next;
      products[row] += next * c[d];
    }
}
#endif

typedef struct {
  NAME(mamba_scan_arguments) of;
  int64_t part_size, num_parts; /* rows of a matrix to an item, and items to a matrix */
} NAME(scan_call);

/* Sets the time steps of up to SCAN_TOKENS tokens of a head, and what is kept of its matrix. */
INLINE void NAME(find_steps)(const NAME(mamba_scan_arguments) *of, int64_t head, int64_t token, int64_t count, float *steps, float *kept) {
  const element *time = of->time + token * of->time_stride + head;
  float values[SCAN_TOKENS] = {0};
  for (int64_t i = 0; i < count; i++) values[i] = WIDEN(time[i * of->time_stride]);
  const float bias = of->biases[head], rate = of->rates[head] * LOG2_E, shortest = of->shortest, longest = of->longest;
  SIMD for (int64_t i = 0; i < SCAN_TOKENS; i++) {
    float step = softplus(values[i] + bias);
    step = step < shortest ? shortest : step;
    steps[i] = step > longest ? longest : step;
    kept[i] = power_of_2(rate * steps[i]);
  }
}

/* Computes a token for an item's rows: `from` (null: zeros) and `to` are the rows before and after it. */
INLINE void NAME(scan_token)(const NAME(mamba_scan_arguments) *of, int64_t head, int64_t first, int64_t num_values, int64_t token,
                             const float *from, float *to, float step, float kept, float *groups) {
  const int64_t state_size = of->state_size, num_x = of->num_heads * of->value_size;
  const element *all = of->xbc + token * of->stride, *x = all + head * of->value_size + first;
  const element *b = all + num_x + head * of->num_groups / of->num_heads * state_size;
  const element *c = b + of->num_groups * state_size;
  element *out = of->out + token * num_x + head * of->value_size + first;
  const float skip = of->skip[head];
  float values[PART_VALUES], added[PART_VALUES + SCAN_ROWS], products[PART_VALUES + SCAN_ROWS];
  SIMD for (int64_t d = 0; d < state_size; d++) groups[d] = WIDEN(b[d]);
  SIMD for (int64_t d = 0; d < state_size; d++) groups[state_size + d] = WIDEN(c[d]);
  SIMD for (int64_t v = 0; v < num_values; v++) values[v] = WIDEN(x[v]), added[v] = step * values[v];
  int64_t v = 0;
  for (; v + SCAN_ROWS <= num_values; v += SCAN_ROWS)
    advance_matrix(from + v * state_size, to + v * state_size, SCAN_ROWS, state_size, kept, added + v, groups, products + v);
  for (; v < num_values; v++)
    advance_matrix(from + v * state_size, to + v * state_size, 1, state_size, kept, added + v, groups, products + v);
  SIMD for (int64_t v = 0; v < num_values; v++) out[v] = NARROW(products[v] + skip * values[v]);
}

/* Computes all tokens for some rows of one head's matrix, which are here between the tokens that store them. */
static void NAME(scan_item)(const void *data, int64_t item) {
  const NAME(scan_call) *call = data;
  const NAME(mamba_scan_arguments) *of = &call->of;
  const int64_t head = item / call->num_parts, first = item % call->num_parts * call->part_size;
  const int64_t rest = of->value_size - first, num_values = rest < call->part_size ? rest : call->part_size;
  const int64_t matrix_size = of->value_size * of->state_size, slot_size = of->num_heads * matrix_size;
  const int64_t num_rows = of->rows.num_decode_rows + of->rows.num_prefill_rows;
  float *matrices = of->matrices + head * matrix_size + first * of->state_size;
  float steps[SCAN_TOKENS], kept[SCAN_TOKENS];
  _Alignas(64) float matrix[STATE_FLOATS], groups[2 * MOST_STATE];
  for (int64_t row = 0, token = 0; row < num_rows; row++) {
    const state_row now = find_state_row(&of->rows, row, token);
    const float *from = matrices + now.source * slot_size;
    if (now.source < 0) from = memset(matrix, 0, (size_t)(num_values * of->state_size) * sizeof *matrix);
    while (token < now.end) {
      const int64_t count = now.end - token < SCAN_TOKENS ? now.end - token : SCAN_TOKENS;
      NAME(find_steps)(of, head, token, count, steps, kept);
      for (int64_t i = 0; i < count; i++, token++) {
        const int64_t slot = of->rows.slots[token];
        float *to = slot < 0 ? matrix : matrices + slot * slot_size;
        NAME(scan_token)(of, head, first, num_values, token, from, to, steps[i], kept[i], groups);
        from = to;
      }
    }
  }
}

PUBLIC int NAME(mamba_scan)(const NAME(mamba_scan_arguments) *of) {
  const int64_t part_size = STATE_FLOATS / of->state_size < PART_VALUES ? STATE_FLOATS / of->state_size : PART_VALUES;
  const NAME(scan_call) call = {*of, part_size, (of->value_size + part_size - 1) / part_size};
  const int64_t slot_size = of->num_heads * of->value_size * of->state_size;
  run_items(of->num_heads * call.num_parts, count_row_tokens(&of->rows) * slot_size, NAME(scan_item), &call);
  return 0;
}
