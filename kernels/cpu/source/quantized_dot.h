/* Sums of products of unsigned weight codes and signed activation codes, exact in 32 bits: 16 outputs at a time, four
   neighbouring inputs of each in four neighbouring bytes. */
#ifndef SLUICE_QUANTIZED_DOT
#define SLUICE_QUANTIZED_DOT

/* A block of outputs is one stretch of memory. */
enum { QUANT_BLOCK = 32, QUANT_MOST_INPUTS = 64 /* of a group */ };

/* Inputs that have one scale; kernels/quantized_linear.py has it too. */
INLINE int quant_group(const int bits) { return bits == 4 ? 32 : 64; }
INLINE int64_t quant_group_bytes(int bits) { return 2 * QUANT_BLOCK + quant_group(bits) * QUANT_BLOCK * bits / 8; }

/* What the products with a row's group of activation codes start from, so that codes without sign do no harm, and what
   they are multiplied by. */
typedef struct {
  int32_t first;
  float scale;
} quant_factor;

typedef int32_t int32x16 __attribute__((vector_size(64), aligned(4), may_alias));

#if defined(__AVX512VNNI__)
#define QUANT_ROWS 8 /* of a tile: their sums of a group fit in the registers */
#define QUANT_UNROLL PRAGMA(GCC unroll 4)
typedef __m512i quant_codes;
typedef __m512i quant_sums;

INLINE quant_codes quant_load(const uint8_t *codes) { return _mm512_loadu_si512(codes); }
INLINE quant_codes quant_low(quant_codes both) { return _mm512_and_si512(both, _mm512_set1_epi8(15)); }
INLINE quant_codes quant_high(quant_codes both) { return quant_low(_mm512_srli_epi16(both, 4)); }
INLINE quant_sums quant_start(int32_t value) { return _mm512_set1_epi32(value); }
INLINE quant_sums quant_dot(quant_sums sums, quant_codes codes, int32_t four, const int bits) {
  (void)bits;
  return _mm512_dpbusd_epi32(sums, codes, _mm512_set1_epi32(four));
}
INLINE float16v quant_floats(quant_sums sums) { return (float16v)_mm512_cvtepi32_ps(sums); }

#elif defined(__AVX2__)
#include <immintrin.h>
#define QUANT_ROWS 2
#define QUANT_UNROLL PRAGMA(GCC unroll 4)
typedef struct {
  __m256i half[2];
} quant_codes;
typedef quant_codes quant_sums;

INLINE quant_codes quant_load(const uint8_t *codes) {
  return (quant_codes){{_mm256_loadu_si256((const void *)codes), _mm256_loadu_si256((const void *)(codes + 32))}};
}
INLINE __m256i quant_low_half(__m256i both) { return _mm256_and_si256(both, _mm256_set1_epi8(15)); }
INLINE quant_codes quant_low(quant_codes both) {
  return (quant_codes){{quant_low_half(both.half[0]), quant_low_half(both.half[1])}};
}
INLINE quant_codes quant_high(quant_codes both) {
  return (quant_codes){
      {quant_low_half(_mm256_srli_epi16(both.half[0], 4)), quant_low_half(_mm256_srli_epi16(both.half[1], 4))}};
}
INLINE quant_sums quant_start(int32_t value) {
  return (quant_sums){{_mm256_set1_epi32(value), _mm256_set1_epi32(value)}};
}
/* The instruction adds pairs of products in 16 bits: 2 * 15 * 127 and, of magnitudes up to 127, 2 * 127 * 127 fit. So codes
   of 8 bits are taken as signed here and their sign is moved to the activations; `quant_zero` says so. */
INLINE __m256i quant_dot_half(__m256i sums, __m256i codes, __m256i four, const int bits) {
  __m256i pairs;
  if (bits == 4) {
    pairs = _mm256_maddubs_epi16(codes, four);
  } else {
    const __m256i centred = _mm256_xor_si256(codes, _mm256_set1_epi8((char)0x80));
    pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(centred), _mm256_sign_epi8(four, centred));
  }
  return _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
INLINE quant_sums quant_dot(quant_sums sums, quant_codes codes, int32_t four, const int bits) {
  const __m256i all = _mm256_set1_epi32(four);
  return (quant_sums){{quant_dot_half(sums.half[0], codes.half[0], all, bits),
                       quant_dot_half(sums.half[1], codes.half[1], all, bits)}};
}
INLINE float16v quant_floats(quant_sums sums) {
  const __m256 halves[2] = {_mm256_cvtepi32_ps(sums.half[0]), _mm256_cvtepi32_ps(sums.half[1])};
  float16v all;
  memcpy(&all, halves, sizeof all);
  return all;
}

#else
#define QUANT_ROWS 2
#define QUANT_UNROLL
typedef int32x16 quant_codes;
typedef int32x16 quant_sums;

INLINE quant_codes quant_load(const uint8_t *codes) { return *(const int32x16 *)codes; }
INLINE quant_codes quant_low(quant_codes both) { return both & 0x0f0f0f0f; }
INLINE quant_codes quant_high(quant_codes both) { return quant_low(both >> 4); }
INLINE quant_sums quant_start(int32_t value) { return (quant_sums){0} + value; }
INLINE quant_sums quant_dot(quant_sums sums, quant_codes codes, int32_t four, const int bits) {
  (void)bits;
  for (int j = 0; j < 4; j++) sums += (codes >> (8 * j) & 255) * (int32_t)(int8_t)((uint32_t)four >> (8 * j));
  return sums;
}
INLINE float16v quant_floats(quant_sums sums) { return __builtin_convertvector(sums, float16v); }
#endif

/* What a code of 0 stands for is minus this many scales. */
INLINE int32_t quant_zero(const int bits) {
#if defined(__AVX2__) && !defined(__AVX512VNNI__)
  if (bits == 8) return 0; /* quant_dot has taken it off */
#endif
  return bits == 4 ? 8 : 128;
}

/* Adds to `sums` [rows, 32] what one vector of codes for each half of the outputs gives; `four`: [rows, 4]. */
INLINE void quant_step(quant_sums sums[][2], const quant_codes codes[2], const int8_t *four, const int rows,
                       const int bits) {
  for (int r = 0; r < rows; r++) {
    int32_t inputs;
    memcpy(&inputs, four + 4 * r, sizeof inputs);
    for (int v = 0; v < 2; v++) sums[r][v] = quant_dot(sums[r][v], codes[v], inputs, bits);
  }
}

/* Adds what `num_groups` groups of a block's `weight` give to the 32 outputs of the rows of a tile; `sums`: [rows, 32],
   `codes`: [groups, inputs of a group / 4, rows, 4], `factors`: [groups, rows]. `later`: as many groups that will be wanted soon, of which
   `lines` cache lines each are asked for here. */
INLINE void quant_tile(const uint8_t *weight, const int8_t *codes, const quant_factor *factors, int64_t num_groups,
                       float *sums, const uint8_t *later, int lines, const int rows, const int bits) {
  for (int64_t group = 0; group < num_groups; group++, factors += rows) {
    for (int line = 0; line < lines; line++) __builtin_prefetch(later + 64 * line, 0, 2);
    later += quant_group_bytes(bits);
    __asm__ volatile("" ::: "memory"); /* sums stay in memory: in registers they would drive the products out */
    quant_sums products[QUANT_ROWS][2];
    for (int r = 0; r < rows; r++) products[r][0] = products[r][1] = quant_start(factors[r].first);
    const uint8_t *from = weight + 2 * QUANT_BLOCK;
    QUANT_UNROLL for (int i = 0; i < quant_group(bits) * bits / 32; i++, from += 4 * QUANT_BLOCK) {
      const quant_codes loaded[2] = {quant_load(from), quant_load(from + 2 * QUANT_BLOCK)};
      if (bits == 8) {
        quant_step(products, loaded, codes, rows, bits);
      } else {
        const quant_codes low[2] = {quant_low(loaded[0]), quant_low(loaded[1])};
        quant_step(products, low, codes, rows, bits);
        const quant_codes high[2] = {quant_high(loaded[0]), quant_high(loaded[1])};
        quant_step(products, high, codes + 4 * rows, rows, bits);
      }
      codes += 32 / bits * rows;
    }
    QUANT_UNROLL for (int v = 0; v < 2; v++) {
      float16v scales;
      for (int i = 0; i < 16; i++) scales[i] = widen_bfloat16(((const uint16_t *)weight)[16 * v + i]);
      for (int r = 0; r < rows; r++) {
        float16v *sum = (float16v *)(sums + r * QUANT_BLOCK + 16 * v);
        *sum += quant_floats(products[r][v]) * (scales * factors[r].scale);
      }
    }
    weight += quant_group_bytes(bits);
  }
}
#endif
