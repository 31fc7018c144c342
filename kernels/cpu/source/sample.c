/* A draw with probability softmax(scores): kernels/sample.py says what it does, kernels/noise.py whence its noise. */

#if !IS_BFLOAT16
enum { SAMPLE_PART = 2048 };

typedef struct {
  float best;
  int32_t token;
} sample_part;

typedef struct {
  const float *scores;
  const int64_t *seeds, *positions;
  sample_part *parts;
  int64_t num_parts, vocab_size;
} NAME(sample_call);

INLINE uint64_t NAME(mix64)(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

INLINE uint32_t NAME(lowbias32)(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x7FEB352Du;
  x = (x ^ (x >> 15)) * 0x846CA68Bu;
  return x ^ (x >> 16);
}

/* The natural logarithm of a positive normal number. Cephes' polynomial, relative error about 1e-7. */
INLINE float NAME(logarithm)(float x) {
  const uint32_t bits = bits_of(x) - 0x3f3504f3u; /* sqrt(1/2): the mantissa lies around 1 */
  const float exponent = (float)((int32_t)bits >> 23);
  const float f = float_of((bits & 0x007fffffu) + 0x3f3504f3u) - 1.0f, square = f * f;
  float p = 7.0376836292e-2f;
  p = p * f - 1.1514610310e-1f;
  p = p * f + 1.1676998740e-1f;
  p = p * f - 1.2420140846e-1f;
  p = p * f + 1.4249322787e-1f;
  p = p * f - 1.6668057665e-1f;
  p = p * f + 2.0000714765e-1f;
  p = p * f - 2.4999993993e-1f;
  p = p * f + 3.3333331174e-1f;
  p = p * f * square - 2.12194440e-4f * exponent - 0.5f * square;
  return f + p + 0.693359375f * exponent;
}

static void NAME(sample_item)(const void *data, int64_t item) {
  const NAME(sample_call) *call = data;
  const int64_t row = item / call->num_parts, first = item % call->num_parts * SAMPLE_PART;
  const int64_t rest = call->vocab_size - first, size = rest < SAMPLE_PART ? rest : SAMPLE_PART;
  const float *scores = call->scores + row * call->vocab_size + first;
  const uint64_t key = NAME(mix64)(NAME(mix64)((uint64_t)call->seeds[row]) + (uint64_t)call->positions[row]);
  const uint32_t low = (uint32_t)key, high = (uint32_t)(key >> 32);
  float noisy[SAMPLE_PART], best = -INFINITY;
  SIMD for (int32_t i = 0; i < (int32_t)size; i++) {
    const uint32_t hash = NAME(lowbias32)(NAME(lowbias32)(((uint32_t)first + (uint32_t)i) ^ low) ^ high);
    float uniform = ((float)(int32_t)(hash & 0x7fffffffu) + 0.5f) * 4.656612873077393e-10f;
    uniform = uniform > 0.99999994f ? 0.99999994f : uniform;
    /* log(1 - u) loses u where it is small, which is where the draws that win are; Kahan's correction gives it back. */
    const float other = 1.0f - uniform, lost = 1.0f - other;
    const float draw = lost == 0.0f ? uniform : -NAME(logarithm)(other) * (uniform / lost);
    noisy[i] = scores[i] - NAME(logarithm)(draw);
  }
  _Pragma("omp simd reduction(max : best)") for (int64_t i = 0; i < size; i++) best = noisy[i] > best ? noisy[i] : best;
  int32_t token = 0;
  while (token < size && noisy[token] != best) token++;
  call->parts[item] = (sample_part){best, (int32_t)(first + token)};
}

/* scores: [num_rows, vocab_size]. Returns 0, or -1 without memory. */
PUBLIC int NAME(sample)(const float *scores, const int64_t *seeds, const int64_t *positions, int64_t *tokens,
                        int64_t num_rows, int64_t vocab_size) {
  const int64_t num_parts = (vocab_size + SAMPLE_PART - 1) / SAMPLE_PART;
  if (num_rows == 0) return 0;
  sample_part *parts = malloc((size_t)(num_rows * num_parts) * sizeof *parts);
  if (!parts) return -1;
  NAME(sample_call) call = {scores, seeds, positions, parts, num_parts, vocab_size};
  run_items(num_rows * num_parts, num_rows * vocab_size * 8, NAME(sample_item), &call);
  for (int64_t row = 0; row < num_rows; row++) {
    const sample_part *mine = parts + row * num_parts;
    int64_t best = 0;
    for (int64_t part = 1; part < num_parts; part++)
      if (mine[part].best > mine[best].best) best = part;
    tokens[row] = mine[best].token < vocab_size ? mine[best].token : 0;
  }
  free(parts);
  return 0;
}
#endif
