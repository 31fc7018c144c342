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
  const element *xbc, *time;
  const float *rates, *biases, *skip;
  float *matrices;
  element *out;
  state_rows rows;
  int64_t stride, time_stride, num_heads, value_size, state_size, num_groups;
  int64_t part_size, num_parts; /* rows of a matrix to an item, and items to a matrix */
  float shortest, longest;
} NAME(scan_call);

/* Sets the time steps of up to SCAN_TOKENS tokens of a head, and what is kept of its matrix. */
INLINE void NAME(find_steps)(const NAME(scan_call) *call, int64_t head, int64_t token, int64_t count, float *steps, float *kept) {
  const element *time = call->time + token * call->time_stride + head;
  float values[SCAN_TOKENS] = {0};
  for (int64_t i = 0; i < count; i++) values[i] = WIDEN(time[i * call->time_stride]);
  const float bias = call->biases[head], rate = call->rates[head] * LOG2_E, shortest = call->shortest, longest = call->longest;
  SIMD for (int64_t i = 0; i < SCAN_TOKENS; i++) {
    float step = softplus(values[i] + bias);
    step = step < shortest ? shortest : step;
    steps[i] = step > longest ? longest : step;
    kept[i] = power_of_2(rate * steps[i]);
  }
}

/* Computes a token for an item's rows: `from` (null: zeros) and `to` are the rows before and after it. */
INLINE void NAME(scan_token)(const NAME(scan_call) *call, int64_t head, int64_t first, int64_t num_values, int64_t token,
                             const float *from, float *to, float step, float kept, float *groups) {
  const int64_t state_size = call->state_size, num_x = call->num_heads * call->value_size;
  const element *all = call->xbc + token * call->stride, *x = all + head * call->value_size + first;
  const element *b = all + num_x + head * call->num_groups / call->num_heads * state_size;
  const element *c = b + call->num_groups * state_size;
  element *out = call->out + token * num_x + head * call->value_size + first;
  const float skip = call->skip[head];
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
  const int64_t head = item / call->num_parts, first = item % call->num_parts * call->part_size;
  const int64_t rest = call->value_size - first, num_values = rest < call->part_size ? rest : call->part_size;
  const int64_t matrix_size = call->value_size * call->state_size, slot_size = call->num_heads * matrix_size;
  const int64_t num_rows = call->rows.num_decode_rows + call->rows.num_prefill_rows;
  float *matrices = call->matrices + head * matrix_size + first * call->state_size;
  float steps[SCAN_TOKENS], kept[SCAN_TOKENS];
  _Alignas(64) float matrix[STATE_FLOATS], groups[2 * MOST_STATE];
  for (int64_t row = 0, token = 0; row < num_rows; row++) {
    const state_row now = find_state_row(&call->rows, row, token);
    const float *from = matrices + now.source * slot_size;
    if (now.source < 0) from = memset(matrix, 0, (size_t)(num_values * call->state_size) * sizeof *matrix);
    while (token < now.end) {
      const int64_t count = now.end - token < SCAN_TOKENS ? now.end - token : SCAN_TOKENS;
      NAME(find_steps)(call, head, token, count, steps, kept);
      for (int64_t i = 0; i < count; i++, token++) {
        const int64_t slot = call->rows.slots[token];
        float *to = slot < 0 ? matrix : matrices + slot * slot_size;
        NAME(scan_token)(call, head, first, num_values, token, from, to, steps[i], kept[i], groups);
        from = to;
      }
    }
  }
}

/* xbc: [num_tokens, num_heads * value_size + 2 * num_groups * state_size] and time: [num_tokens, num_heads], rows that are
   `stride` and `time_stride` elements apart; rates, biases, skip: [num_heads]; matrices: [slots, num_heads, value_size,
   state_size]; out: [num_tokens, num_heads * value_size]. state_size: at most MOST_STATE. */
PUBLIC void NAME(mamba_scan)(const element *xbc, const element *time, const float *rates, const float *biases,
                             const float *skip, float *matrices, const int32_t *decode_sources,
                             const int32_t *prefill_sources, const int32_t *prefill_lens, const int32_t *slots, element *out,
                             int64_t num_decode_rows, int64_t num_prefill_rows, int64_t stride,
                             int64_t time_stride, int64_t num_heads, int64_t value_size, int64_t state_size,
                             int64_t num_groups, float shortest, float longest) {
  const int64_t part_size = STATE_FLOATS / state_size < PART_VALUES ? STATE_FLOATS / state_size : PART_VALUES;
  const int64_t num_parts = (value_size + part_size - 1) / part_size, slot_size = num_heads * value_size * state_size;
  const NAME(scan_call) call = {
      xbc, time, rates, biases, skip, matrices, out,
      {decode_sources, prefill_sources, prefill_lens, slots, num_decode_rows, num_prefill_rows},
      stride, time_stride, num_heads, value_size, state_size, num_groups, part_size, num_parts, shortest, longest};
  run_items(num_heads * num_parts, count_row_tokens(&call.rows) * slot_size, NAME(scan_item), &call);
}
