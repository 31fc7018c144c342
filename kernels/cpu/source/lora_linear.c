/* The low-rank updates that adapters add to a linear layer: see kernels/operations/lora_linear.py.

   First u = scale * A x for each token, then out += B u. The tokens of an adapter are computed together, so its matrices are
   read once. A sum has its products in the same order whatever other tokens there are. */

#ifndef SLUICE_LORA
#define SLUICE_LORA
/* The most tokens of a group; the tokens, and rows of A, whose products are in the registers together; outputs of an item. */
enum { LORA_GROUP = 64, LORA_TOKENS = 4, LORA_ROWS = 4, LORA_OUTPUTS = 256 };

#if defined(__AVX512BF16__)
typedef __m512 lora_lanes;
enum { LORA_LANES = 16, LORA_MOST_TOKENS = 8 /* that add to outputs together */ };
#else
typedef lanes lora_lanes;
enum { LORA_LANES = LANES, LORA_MOST_TOKENS = 4 };
#endif

INLINE lora_lanes lora_multiply_add(lora_lanes a, lora_lanes b, lora_lanes c) {
#if defined(__AVX512BF16__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__FMA__)
  return (lora_lanes)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  return a * b + c;
#endif
}

INLINE lora_lanes lora_set(float x) {
#if defined(__AVX512BF16__)
  return _mm512_set1_ps(x);
#else
  return (lora_lanes){x, x, x, x, x, x, x, x};
#endif
}

INLINE float lora_sum(lora_lanes x) {
#if defined(__AVX512BF16__)
  return _mm512_reduce_add_ps(x);
#else
  return ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]));
#endif
}

/* `count` tokens of an adapter, from `first` on in the order of the call. */
typedef struct {
  int32_t slot, first, count;
} lora_group;
#endif

typedef struct {
  NAME(lora_linear_arguments) of;
  int64_t most_rank, num_blocks;
  const int32_t *order; /* tokens that have an adapter */
  const lora_group *groups;
  float *u; /* in that order: [tokens, num_segments, max_rank] */
} NAME(lora_call);

/* `left` elements, at most LORA_LANES of them; the others are 0. */
INLINE lora_lanes NAME(lora_read)(const element *x, int64_t left) {
#if defined(__AVX512BF16__) && IS_BFLOAT16
  return load_vector(x, lanes_of(left));
#elif defined(__AVX512BF16__)
  return load_floats(x, lanes_of(left));
#else
  if (left >= LORA_LANES) return LOAD(x);
  lora_lanes all = lora_set(0.0f);
  for (int64_t i = 0; i < left; i++) all[i] = WIDEN(x[i]);
  return all;
#endif
}

INLINE void NAME(lora_write)(element *out, lora_lanes x, int64_t left) {
#if defined(__AVX512BF16__)
  linear_put(out, lanes_of(left), x);
#else
  for (int64_t i = 0; i < LORA_LANES && i < left; i++) out[i] = NARROW(x[i]);
#endif
}

#if defined(__AVX512BF16__) && IS_BFLOAT16
INLINE __m512i lora_read_pairs(const uint16_t *x, int64_t left) {
  return left >= 32 ? _mm512_loadu_si512(x) : _mm512_maskz_loadu_epi16(lanes_from(0, left), x);
}
#endif

/* Adds the products of some inputs to the sums: 32 bfloat16 with AVX-512, else a vector of floats. */
INLINE void NAME(lora_products)(lora_lanes sums[LORA_TOKENS][LORA_ROWS], const element *const *x, const element *const *a,
                                int64_t input, int64_t left, const int tokens) {
#if defined(__AVX512BF16__) && IS_BFLOAT16
  __m512i row[LORA_ROWS];
  for (int r = 0; r < LORA_ROWS; r++) row[r] = lora_read_pairs(a[r] + input, left);
  for (int t = 0; t < tokens; t++) {
    const __m512i mine = lora_read_pairs(x[t] + input, left);
    for (int r = 0; r < LORA_ROWS; r++) sums[t][r] = _mm512_dpbf16_ps(sums[t][r], (__m512bh)mine, (__m512bh)row[r]);
  }
#else
  lora_lanes row[LORA_ROWS];
  for (int r = 0; r < LORA_ROWS; r++) row[r] = NAME(lora_read)(a[r] + input, left);
  for (int t = 0; t < tokens; t++) {
    const lora_lanes mine = NAME(lora_read)(x[t] + input, left);
    for (int r = 0; r < LORA_ROWS; r++) sums[t][r] = lora_multiply_add(mine, row[r], sums[t][r]);
  }
#endif
}

/* Writes u of some tokens for up to LORA_ROWS rows of A; `rows` of them are real. The group's first tokens prefetch the next
   rows. */
INLINE void NAME(lora_shrink_tokens)(const NAME(lora_call) *call, const int32_t *tokens, const element *const *a, float scale,
                                     float *u, int64_t rows, int is_first, const int count) {
  enum { STEP = IS_BFLOAT16 && LORA_LANES == 16 ? 2 * LORA_LANES : LORA_LANES };
  const element *x[LORA_TOKENS];
  lora_lanes sums[LORA_TOKENS][LORA_ROWS];
  for (int t = 0; t < count; t++) {
    x[t] = call->of.x + tokens[t] * call->of.num_inputs;
    for (int r = 0; r < LORA_ROWS; r++) sums[t][r] = lora_set(0.0f);
  }
  int64_t input = 0;
  for (; input + STEP <= call->of.num_inputs; input += STEP) {
    if (is_first)
      for (int r = 0; r < LORA_ROWS; r++) __builtin_prefetch(a[r] + LORA_ROWS * call->of.num_inputs + input, 0, 2);
    NAME(lora_products)(sums, x, a, input, STEP, count);
  }
  if (input < call->of.num_inputs) NAME(lora_products)(sums, x, a, input, call->of.num_inputs - input, count);
  const int64_t width = call->of.num_segments * call->of.max_rank;
  for (int t = 0; t < count; t++)
    for (int r = 0; r < rows; r++) u[t * width + r] = scale * lora_sum(sums[t][r]);
}

/* An item: some rows of A of one segment, for the tokens of a group. */
static void NAME(lora_shrink)(const void *data, int64_t item) {
  const NAME(lora_call) *call = data;
  const int64_t row_blocks = (call->most_rank + LORA_ROWS - 1) / LORA_ROWS, first_row = item % row_blocks * LORA_ROWS;
  const int64_t segment = item / row_blocks % call->of.num_segments;
  const lora_group *group = call->groups + item / row_blocks / call->of.num_segments;
  const int64_t place = group->slot * call->of.num_segments + segment, rank = call->of.ranks[place];
  if (first_row >= rank) return;
  const element *a[LORA_ROWS];
  for (int64_t r = 0; r < LORA_ROWS; r++) {
    const int64_t row = first_row + r < rank ? first_row + r : rank - 1;
    a[r] = call->of.a + (place * call->of.max_rank + row) * call->of.num_inputs;
  }
  const int64_t rows = rank - first_row < LORA_ROWS ? rank - first_row : LORA_ROWS;
  for (int64_t t = 0; t < group->count; t += LORA_TOKENS) {
    const int64_t position = group->first + t;
    const int32_t *tokens = call->order + position;
    float *u = call->u + (position * call->of.num_segments + segment) * call->of.max_rank + first_row;
#define TOKENS(count) \
  case count: NAME(lora_shrink_tokens)(call, tokens, a, call->of.scales[place], u, rows, t == 0, count); break;
    switch (group->count - t < LORA_TOKENS ? group->count - t : LORA_TOKENS) { TOKENS(1) TOKENS(2) TOKENS(3) TOKENS(4) }
#undef TOKENS
  }
}

/* Adds to two vectors of outputs, or to `left` of them, of some tokens. The group's first ones prefetch the next item's B. */
INLINE void NAME(lora_add)(const NAME(lora_call) *call, const int32_t *tokens, const float *u, const element *b, int64_t rank,
                           int64_t output, int64_t left, int is_first, const int count) {
  const int64_t width = call->of.num_segments * call->of.max_rank;
  lora_lanes sums[LORA_MOST_TOKENS][2];
  for (int t = 0; t < count; t++) sums[t][0] = sums[t][1] = lora_set(0.0f);
  for (int64_t r = 0; r < rank; r++, b += call->of.num_outputs) {
    if (is_first) __builtin_prefetch(b + LORA_OUTPUTS, 0, 2);
    const lora_lanes low = NAME(lora_read)(b, left), high = NAME(lora_read)(b + LORA_LANES, left - LORA_LANES);
    for (int t = 0; t < count; t++) {
      const lora_lanes mine = lora_set(u[t * width + r]);
      sums[t][0] = lora_multiply_add(mine, low, sums[t][0]);
      sums[t][1] = lora_multiply_add(mine, high, sums[t][1]);
    }
  }
  for (int t = 0; t < count; t++) {
    element *out = call->of.out + tokens[t] * call->of.num_outputs + output;
    for (int half = 0; half < 2; half++, out += LORA_LANES) {
      const int64_t some = left - half * LORA_LANES;
      if (some > 0) NAME(lora_write)(out, NAME(lora_read)(out, some) + sums[t][half], some);
    }
  }
}

INLINE void NAME(lora_expand_tokens)(const NAME(lora_call) *call, const int32_t *tokens, const float *u, const element *b,
                                     int64_t rank, int64_t begin, int64_t end, int is_first, const int count) {
  int64_t output = begin;
  for (; output + 2 * LORA_LANES <= end; output += 2 * LORA_LANES)
    NAME(lora_add)(call, tokens, u, b + output, rank, output, 2 * LORA_LANES, is_first, count);
  if (output < end) NAME(lora_add)(call, tokens, u, b + output, rank, output, end - output, is_first, count);
}

/* An item: some outputs of the tokens of a group, in one segment or several. */
static void NAME(lora_expand)(const void *data, int64_t item) {
  const NAME(lora_call) *call = data;
  const lora_group *group = call->groups + item / call->num_blocks;
  const int64_t first = item % call->num_blocks * LORA_OUTPUTS, last = first + LORA_OUTPUTS;
  const element *b = call->of.b + group->slot * call->of.max_rank * call->of.num_outputs;
  for (int64_t segment = 0, start = 0; segment < call->of.num_segments; start = call->of.ends[segment++]) {
    const int64_t rank = call->of.ranks[group->slot * call->of.num_segments + segment], stop = call->of.ends[segment];
    const int64_t begin = first > start ? first : start, end = last < stop ? last : stop;
    for (int64_t t = 0; begin < end && rank && t < group->count; t += LORA_MOST_TOKENS) {
      const int64_t position = group->first + t, left = group->count - t;
      const int32_t *tokens = call->order + position;
      const float *u = call->u + (position * call->of.num_segments + segment) * call->of.max_rank;
#define TOKENS(count) \
  case count: NAME(lora_expand_tokens)(call, tokens, u, b, rank, begin, end, t == 0, count); break;
      switch (left < LORA_MOST_TOKENS ? left : LORA_MOST_TOKENS) {
        TOKENS(1) TOKENS(2) TOKENS(3) TOKENS(4)
#if defined(__AVX512BF16__)
        TOKENS(5) TOKENS(6) TOKENS(7) TOKENS(8)
#endif
      }
#undef TOKENS
    }
  }
}

/* Returns 0, or -1 without memory. */
PUBLIC int NAME(lora_linear)(const NAME(lora_linear_arguments) *of) {
  const int64_t num_tokens = of->num_tokens, num_slots = of->num_slots, num_segments = of->num_segments;
  const int64_t most_groups = num_slots + num_tokens / LORA_GROUP, u_size = num_tokens * num_segments * of->max_rank;
  const int64_t room = u_size * (int64_t)sizeof(float) + (num_tokens + num_slots) * (int64_t)sizeof(int32_t) +
                       most_groups * (int64_t)sizeof(lora_group);
  float *u = kept_room((size_t)room);
  if (!u) return -1;
  int32_t *order = (int32_t *)(u + u_size), *places = order + num_tokens;
  lora_group *groups = (lora_group *)(places + num_slots);
  NAME(lora_call) call = {.of = *of, .num_blocks = (of->num_outputs + LORA_OUTPUTS - 1) / LORA_OUTPUTS, .order = order,
                          .groups = groups, .u = u};
  for (int64_t slot = 0; slot < num_slots; slot++) places[slot] = 0;
  for (int64_t token = 0; token < num_tokens; token++)
    if (of->slots[token] >= 0) places[of->slots[token]]++;
  int64_t num_groups = 0;
  int32_t first = 0;
  for (int32_t slot = 0; slot < num_slots; slot++) {
    const int32_t end = first + places[slot];
    places[slot] = first;
    for (int64_t segment = 0; first < end && segment < num_segments; segment++) {
      const int64_t rank = of->ranks[slot * num_segments + segment];
      if (rank > call.most_rank) call.most_rank = rank;
    }
    for (; first < end; first += LORA_GROUP)
      groups[num_groups++] = (lora_group){slot, first, end - first < LORA_GROUP ? end - first : LORA_GROUP};
    first = end;
  }
  if (!call.most_rank) return 0;
  for (int32_t token = 0; token < num_tokens; token++)
    if (of->slots[token] >= 0) order[places[of->slots[token]]++] = token;
  const int64_t num_items = num_groups * num_segments * ((call.most_rank + LORA_ROWS - 1) / LORA_ROWS);
  run_items(num_items, first * of->num_inputs * call.most_rank / 4, NAME(lora_shrink), &call);
  run_items(num_groups * call.num_blocks, first * of->num_outputs * call.most_rank / 4, NAME(lora_expand), &call);
  return 0;
}
