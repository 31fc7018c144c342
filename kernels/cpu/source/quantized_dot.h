/* Sums of products of unsigned weight codes and signed activation codes, exact in 32 bits: 16 outputs at a time, four
   neighbouring inputs of each in four neighbouring bytes. */
#ifndef SLUICE_QUANTIZED_DOT
#define SLUICE_QUANTIZED_DOT

/* A block of outputs is one stretch of memory. */
enum { QUANT_BLOCK = 32, QUANT_MOST_INPUTS = 64 /* of a group */ };

/* Inputs whose codes lie together: those that have one scale, of 4 bits, and a part of a row, of 8.
   kernels/quantized_linear.py has the numbers too. */
INLINE int quant_group(const int bits) { return bits == 4 ? 32 : 64; }
INLINE int64_t quant_scale_bytes(int bits, int of) { return bits == of ? 2 * QUANT_BLOCK : 0; }
INLINE int64_t quant_group_bytes(int bits) { return quant_scale_bytes(bits, 4) + quant_group(bits) * QUANT_BLOCK * bits / 8; }
INLINE int64_t quant_block_bytes(int bits, int64_t num_groups) {
  return quant_scale_bytes(bits, 8) + num_groups * quant_group_bytes(bits);
}

/* What is added to the products with activation codes that have one scale, for codes of weights are without sign, and what
   the sum is multiplied by. */
typedef struct {
  int32_t first;
  float scale;
} quant_factor;

typedef int32_t int32x16 __attribute__((vector_size(64), aligned(4), may_alias));

#if defined(__AVX512VNNI__)
#define QUANT_ROWS 8 /* of a tile: their sums of a group fit in the registers */
#define QUANT_HALVES 2 /* of a block, which are summed at once */
#define QUANT_PAIR 254 /* the largest sum of the magnitudes of two neighbours' codes */
#define QUANT_UNROLL PRAGMA(GCC unroll 4)
typedef __m512i quant_codes;
typedef __m512i quant_sums;

INLINE quant_codes quant_load(const uint8_t *codes) { return _mm512_loadu_si512(codes); }
INLINE quant_codes quant_low(quant_codes both) { return _mm512_and_si512(both, _mm512_set1_epi8(15)); }
INLINE quant_codes quant_high(quant_codes both) { return quant_low(_mm512_srli_epi16(both, 4)); }
INLINE quant_sums quant_none(void) { return _mm512_setzero_si512(); }
INLINE quant_sums quant_dot(quant_sums sums, quant_codes codes, int32_t four, const int bits) {
  (void)bits;
  return _mm512_dpbusd_epi32(sums, codes, _mm512_set1_epi32(four));
}
INLINE int32x16 quant_total(quant_sums sums, const int bits) {
  (void)bits;
  return (int32x16)sums;
}

#elif defined(__AVX2__)
#include <immintrin.h>
#define QUANT_ROWS 5
#define QUANT_HALVES 1
#define QUANT_PAIR 128 /* with codes of weights up to 255, sums fit in 16 bits */
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
INLINE quant_sums quant_none(void) { return (quant_sums){{_mm256_setzero_si256(), _mm256_setzero_si256()}}; }
/* The instruction adds pairs of products in 16 bits: 255 * QUANT_PAIR fits, and of a whole group 32 * 15 * 127 / 2 does,
   which is why sums of 4 bits stay in 16 until the end of the group. */
INLINE __m256i quant_dot_half(__m256i sums, __m256i codes, __m256i four, const int bits) {
  const __m256i pairs = _mm256_maddubs_epi16(codes, four);
  return bits == 4 ? _mm256_add_epi16(sums, pairs)
                   : _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
INLINE quant_sums quant_dot(quant_sums sums, quant_codes codes, int32_t four, const int bits) {
  const __m256i all = _mm256_set1_epi32(four);
  return (quant_sums){{quant_dot_half(sums.half[0], codes.half[0], all, bits),
                       quant_dot_half(sums.half[1], codes.half[1], all, bits)}};
}
INLINE int32x16 quant_total(quant_sums sums, const int bits) {
  int32x16 all;
  for (int v = 0; bits == 4 && v < 2; v++) sums.half[v] = _mm256_madd_epi16(sums.half[v], _mm256_set1_epi16(1));
  memcpy(&all, sums.half, sizeof all);
  return all;
}

#else
#define QUANT_ROWS 2
#define QUANT_HALVES 2
#define QUANT_PAIR 254 /* the largest sum of the magnitudes of two neighbours' codes */
#define QUANT_UNROLL
typedef int32x16 quant_codes;
typedef int32x16 quant_sums;

INLINE quant_codes quant_load(const uint8_t *codes) { return *(const int32x16 *)codes; }
INLINE quant_codes quant_low(quant_codes both) { return both & 0x0f0f0f0f; }
INLINE quant_codes quant_high(quant_codes both) { return quant_low(both >> 4); }
INLINE quant_sums quant_none(void) { return (quant_sums){0}; }
INLINE quant_sums quant_dot(quant_sums sums, quant_codes codes, int32_t four, const int bits) {
  (void)bits;
  for (int j = 0; j < 4; j++) sums += (codes >> (8 * j) & 255) * (int32_t)(int8_t)((uint32_t)four >> (8 * j));
  return sums;
}
INLINE int32x16 quant_total(quant_sums sums, const int bits) {
  (void)bits;
  return sums;
}
#endif

INLINE float16v quant_scales(const uint8_t *scales) {
  float16v wide;
  for (int i = 0; i < 16; i++) wide[i] = widen_bfloat16(((const uint16_t *)scales)[i]);
  return wide;
}

/* Adds to `sums` what a vector of codes for each half of the outputs gives; `four`: [rows, 4]. */
INLINE void quant_step(quant_sums sums[][QUANT_HALVES], const quant_codes *codes, const int8_t *four, const int rows,
                       const int bits) {
  for (int r = 0; r < rows; r++) {
    int32_t inputs;
    memcpy(&inputs, four + 4 * r, sizeof inputs);
    for (int v = 0; v < QUANT_HALVES; v++) sums[r][v] = quant_dot(sums[r][v], codes[v], inputs, bits);
  }
}

/* Adds to `sums` a group's products; `from`: its codes, from the first of the outputs on, `codes`: [inputs / 4, rows, 4]. */
INLINE void quant_products(quant_sums sums[][QUANT_HALVES], const uint8_t *from, const int8_t *codes, const int rows,
                           const int bits) {
  QUANT_UNROLL for (int i = 0; i < quant_group(bits) * bits / 32; i++, from += 4 * QUANT_BLOCK) {
    quant_codes loaded[QUANT_HALVES], part[QUANT_HALVES];
    for (int v = 0; v < QUANT_HALVES; v++) loaded[v] = quant_load(from + 2 * QUANT_BLOCK * v);
    if (bits == 8) {
      quant_step(sums, loaded, codes, rows, bits);
    } else {
      for (int v = 0; v < QUANT_HALVES; v++) part[v] = quant_low(loaded[v]);
      quant_step(sums, part, codes, rows, bits);
      for (int v = 0; v < QUANT_HALVES; v++) part[v] = quant_high(loaded[v]);
      quant_step(sums, part, codes + 4 * rows, rows, bits);
    }
    codes += 32 / bits * rows;
  }
}

/* What a tile of rows is multiplied by: `num_groups` groups of a block's weight, from the first group's first byte on.
   `codes`: [groups, inputs of a group / 4, rows, 4]. `later`: as many groups that will be wanted soon, of which `lines` cache
   lines each are asked for. */
typedef struct {
  const uint8_t *weight, *later;
  const int8_t *codes;
  const quant_factor *factors;
  int64_t num_groups;
  int lines;
} quant_operands;

INLINE void quant_ask(const quant_operands *of, int64_t group, const int half, const int bits) {
  if (half) return;
  const uint8_t *later = of->later + group * quant_group_bytes(bits);
  for (int line = 0; line < of->lines; line++) __builtin_prefetch(later + 64 * line, 0, 2);
}

/* Sets `sums` [rows, 32] to the products of a block's codes of 8 bits with a tile's. */
INLINE void quant_tile_8(const quant_operands *of, int32_t *sums, const int rows) {
  for (int half = 0; half < 2; half += QUANT_HALVES) {
    const uint8_t *from = of->weight + 2 * QUANT_BLOCK * half;
    const int8_t *codes = of->codes;
    quant_sums products[QUANT_ROWS][QUANT_HALVES];
    for (int r = 0; r < rows; r++)
      for (int v = 0; v < QUANT_HALVES; v++) products[r][v] = quant_none();
    for (int64_t group = 0; group < of->num_groups; group++) {
      quant_ask(of, group, half, 8);
      quant_products(products, from, codes, rows, 8);
      from += quant_group_bytes(8);
      codes += quant_group(8) * rows;
    }
    for (int r = 0; r < rows; r++)
      for (int v = 0; v < QUANT_HALVES; v++)
        *(int32x16 *)(sums + r * QUANT_BLOCK + 16 * (half + v)) = quant_total(products[r][v], 8);
  }
}

/* Sets `sums` [rows, 32] to a block's outputs for a tile, before the bias, of weights of 4 bits; `factors`: [groups, rows]. */
INLINE void quant_tile_4(const quant_operands *of, float *sums, const int rows) {
  memset(sums, 0, sizeof(float) * (size_t)(rows * QUANT_BLOCK));
  for (int half = 0; half < 2; half += QUANT_HALVES) {
    const uint8_t *weight = of->weight;
    const int8_t *codes = of->codes;
    const quant_factor *factors = of->factors;
    for (int64_t group = 0; group < of->num_groups; group++, factors += rows) {
      quant_ask(of, group, half, 4);
      __asm__ volatile("" ::: "memory"); /* sums stay in memory: in registers they would drive the products out */
      quant_sums products[QUANT_ROWS][QUANT_HALVES];
      for (int r = 0; r < rows; r++)
        for (int v = 0; v < QUANT_HALVES; v++) products[r][v] = quant_none();
      quant_products(products, weight + 2 * QUANT_BLOCK * (1 + half), codes, rows, 4);
      for (int v = 0; v < QUANT_HALVES; v++) {
        const float16v scales = quant_scales(weight + 32 * (half + v));
        for (int r = 0; r < rows; r++) {
          float16v *sum = (float16v *)(sums + r * QUANT_BLOCK + 16 * (half + v));
          const int32x16 total = quant_total(products[r][v], 4) + factors[r].first;
          *sum += __builtin_convertvector(total, float16v) * (scales * factors[r].scale);
        }
      }
      weight += quant_group_bytes(4);
      codes += quant_group(4) * rows;
    }
  }
}
#endif
