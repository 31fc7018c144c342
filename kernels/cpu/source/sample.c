/* The most likely token, and draws with probability softmax(scores): see kernels/operations/sample.py and, for the noise,
   kernels/operations/noise.py. */

#ifndef SLUICE_SAMPLE
#define SLUICE_SAMPLE
enum { SAMPLE_PART = 2048, SAMPLE_BLOCK = 256 };

typedef struct {
  float best;
  int32_t token, is_finite;
} sample_part;

INLINE uint64_t mix64(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

INLINE uint32_t lowbias32(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x7FEB352Du;
  x = (x ^ (x >> 15)) * 0x846CA68Bu;
  return x ^ (x >> 16);
}

/* Minus the logarithm of the draw of token `token` from the exponential distribution. */
INLINE float gumbel_noise(uint32_t token, uint32_t low, uint32_t high) {
  const uint32_t hash = lowbias32(lowbias32(token ^ low) ^ high);
  float uniform = ((float)(int32_t)(hash & 0x7fffffffu) + 0.5f) * 4.656612873077393e-10f;
  uniform = uniform > 0.99999994f ? 0.99999994f : uniform;
  /* log(1 - u) loses small u, which the winning draws have; Kahan's correction restores it. */
  const float other = 1.0f - uniform, lost = 1.0f - other;
  return -logarithm(lost == 0.0f ? uniform : -logarithm(other) * (uniform / lost));
}
#endif

typedef struct {
  NAME(greedy_arguments) of; /* without temperatures all are 1, or 0 without seeds */
  sample_part *parts;
  int64_t num_parts;
} NAME(sample_call);

INLINE float NAME(temperature_of)(const NAME(greedy_arguments) *of, int64_t row) {
  return of->temperatures ? of->temperatures[row] : of->seeds ? 1.0f : 0.0f;
}

static void NAME(sample_item)(const void *data, int64_t item) {
  const NAME(sample_call) *call = data;
  const NAME(greedy_arguments) *of = &call->of;
  const int64_t row = item / call->num_parts, first = item % call->num_parts * SAMPLE_PART;
  const int64_t rest = of->vocab_size - first, size = rest < SAMPLE_PART ? rest : SAMPLE_PART;
  const element *scores = of->logits + row * of->vocab_size + first;
  const float temperature = NAME(temperature_of)(of, row);
  float noisy[SAMPLE_PART], best = -INFINITY;
  int32_t num_odd = 0;
  if (!(temperature > 0.0f)) { /* sample_rows looks for the first of the best, in the best part only */
    _Pragma("omp simd reduction(max : best) reduction(+ : num_odd)") for (int64_t i = 0; i < size; i++) {
      const float x = WIDEN(scores[i]);
      best = x > best ? x : best;
      num_odd += (bits_of(x) & 0x7f800000u) == 0x7f800000u;
    }
    call->parts[item] = (sample_part){best, (int32_t)first, num_odd == 0};
    return;
  }
  const uint64_t key = mix64(mix64((uint64_t)of->seeds[row]) + (uint64_t)of->positions[row]);
  const uint32_t low = (uint32_t)key, high = (uint32_t)(key >> 32);
  SIMD_SUM(num_odd) for (int64_t i = 0; i < size; i++) {
    noisy[i] = WIDEN(scores[i]);
    num_odd += (bits_of(noisy[i]) & 0x7f800000u) == 0x7f800000u;
  }
  for (int32_t start = 0; start < (int32_t)size; start += SAMPLE_BLOCK) {
    const int32_t end = start + SAMPLE_BLOCK < (int32_t)size ? start + SAMPLE_BLOCK : (int32_t)size;
    float most = -INFINITY;
    _Pragma("omp simd reduction(max : most)") for (int32_t i = start; i < end; i++) most =
        noisy[i] > most ? noisy[i] : most;
    if (most == -INFINITY) continue; /* no token is left, and noise is most of the work */
    SIMD for (int32_t i = start; i < end; i++)
        noisy[i] = noisy[i] / temperature + gumbel_noise((uint32_t)first + (uint32_t)i, low, high);
  }
  _Pragma("omp simd reduction(max : best)") for (int64_t i = 0; i < size; i++) best = noisy[i] > best ? noisy[i] : best;
  int32_t token = 0;
  while (token < size && noisy[token] != best) token++;
  call->parts[item] = (sample_part){best, (int32_t)(first + token), num_odd == 0};
}

/* Returns 0, or -1 without memory. */
static int NAME(sample_rows)(const NAME(greedy_arguments) *of) {
  const int64_t vocab_size = of->vocab_size, num_rows = of->num_rows;
  const int64_t num_parts = (vocab_size + SAMPLE_PART - 1) / SAMPLE_PART;
  int64_t *tokens = of->tokens;
  if (num_rows == 0) return 0;
  sample_part *parts = malloc((size_t)(num_rows * num_parts) * sizeof *parts);
  if (!parts) return -1;
  const NAME(sample_call) call = {*of, parts, num_parts};
  run_items(num_rows * num_parts, num_rows * vocab_size * (of->seeds ? 8 : 1), NAME(sample_item), &call);
  for (int64_t row = 0; row < num_rows; row++) {
    const sample_part *mine = parts + row * num_parts;
    int64_t best = 0;
    int is_finite = 1;
    for (int64_t part = 0; part < num_parts; part++) {
      is_finite &= mine[part].is_finite;
      if (mine[part].best > mine[best].best) best = part;
    }
    tokens[row] = mine[best].token < vocab_size ? mine[best].token : 0;
    if ((of->temperatures || !of->seeds) && !is_finite) tokens[row] = -1;
    else if (!(NAME(temperature_of)(of, row) > 0.0f))
      while (WIDEN(of->logits[row * vocab_size + tokens[row]]) != mine[best].best) tokens[row]++;
  }
  free(parts);
  return 0;
}

/* Like `draw` at temperature 0: takes the first of equal logits. */
PUBLIC int NAME(greedy)(const NAME(greedy_arguments) *of) { return NAME(sample_rows)(of); }

/* Returns 0, or -1 without memory. */
PUBLIC int NAME(draw)(const NAME(greedy_arguments) *of) { return NAME(sample_rows)(of); }

#if !IS_BFLOAT16
/* Returns 0, or -1 without memory. */
PUBLIC int NAME(sample)(const NAME(greedy_arguments) *of) { return NAME(sample_rows)(of); }
#endif
