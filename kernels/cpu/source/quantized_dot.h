/* Sums of products of unsigned weight codes and signed activation codes, exact in 32 bits: 16 outputs at a time, four
   neighbouring inputs of each in four neighbouring bytes. */
#ifndef SLUICE_QUANTIZED_DOT
#define SLUICE_QUANTIZED_DOT

/* A block of outputs is one stretch of memory. */
enum { QUANT_BLOCK = 32 };

/* Inputs to a multiple of which rows are padded, and their bytes. A block begins with its scales. */
enum { QUANT_GROUP = 64, QUANT_GROUP_BYTES = QUANT_GROUP * QUANT_BLOCK, QUANT_SCALE_BYTES = 2 * QUANT_BLOCK };

/* The correction of the sum of products with activation codes of one scale, as codes of weights are unsigned, and the factor
   of the sum. */
typedef struct {
  int32_t first;
  float scale;
} quant_factor;

#if defined(__AVX512VNNI__)
#define QUANT_LANES 16 /* outputs per vector */
#define QUANT_ROWS 14 /* per tile: their sums of a group fit in the registers with the operands */
#define QUANT_UNROLL PRAGMA(GCC unroll 2)
#define QUANT_WHOLLY PRAGMA(GCC unroll 14)
/* Up to this many rows keep the codes of eight inputs in registers; more rows take four at a time from memory. */
enum { QUANT_FEW_ROWS = 4 };
typedef __m512i quant_codes;

INLINE quant_codes quant_load(const uint8_t *codes) { return _mm512_loadu_si512(codes); }
INLINE quant_codes quant_low(quant_codes both) { return _mm512_and_si512(both, _mm512_set1_epi8(15)); }
INLINE quant_codes quant_high(quant_codes both) { return quant_low(_mm512_srli_epi16(both, 4)); }
INLINE quant_codes quant_none(void) { return _mm512_setzero_si512(); }
INLINE quant_codes quant_four(quant_codes sums, quant_codes codes, int32_t four) {
  return _mm512_dpbusd_epi32(sums, codes, _mm512_set1_epi32(four));
}

/* Keeps sums in one register: otherwise GCC alternates between two, and runs out of registers. */
INLINE quant_codes quant_four_in_place(quant_codes sums, quant_codes codes, int32_t four) {
  sums = quant_four(sums, codes, four);
  __asm__("" : "+v"(sums));
  return sums;
}

#elif defined(__AVX2__)
#include <immintrin.h>
#define QUANT_LANES 8
#define QUANT_ROWS 4
#define QUANT_UNROLL
#define QUANT_WHOLLY
/* The largest sum of four codes of one sign whose products with weights up to 255 are added in 16 bits. */
#define QUANT_ROOM 128
typedef __m256i quant_codes;

INLINE quant_codes quant_load(const uint8_t *codes) { return _mm256_loadu_si256((const void *)codes); }
INLINE quant_codes quant_low(quant_codes both) { return _mm256_and_si256(both, _mm256_set1_epi8(15)); }
INLINE quant_codes quant_high(quant_codes both) { return quant_low(_mm256_srli_epi16(both, 4)); }
INLINE quant_codes quant_none(void) { return _mm256_setzero_si256(); }
INLINE __m256i quant_pairs(quant_codes codes, int32_t four) { return _mm256_maddubs_epi16(codes, _mm256_set1_epi32(four)); }
INLINE __m256i quant_widened(__m256i pairs) { return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)); }
INLINE quant_codes quant_four(quant_codes sums, quant_codes codes, int32_t four) {
  return _mm256_add_epi32(sums, quant_widened(quant_pairs(codes, four)));
}

#else
#define QUANT_LANES 16
#define QUANT_ROWS 2
#define QUANT_UNROLL
#define QUANT_WHOLLY
typedef int32_t quant_codes __attribute__((vector_size(64), aligned(4), may_alias));

INLINE quant_codes quant_load(const uint8_t *codes) { return *(const quant_codes *)codes; }
INLINE quant_codes quant_low(quant_codes both) { return both & 0x0f0f0f0f; }
INLINE quant_codes quant_high(quant_codes both) { return quant_low(both >> 4); }
INLINE quant_codes quant_none(void) { return (quant_codes){0}; }
INLINE quant_codes quant_four(quant_codes sums, quant_codes codes, int32_t four) {
  for (int j = 0; j < 4; j++) sums += (codes >> (8 * j) & 255) * (int32_t)(int8_t)((uint32_t)four >> (8 * j));
  return sums;
}
#endif

/* Adds the products of eight inputs. AVX2 adds four of them in 16 bits: 255 * QUANT_ROOM fits. */
INLINE quant_codes quant_eight(quant_codes sums, quant_codes first, quant_codes second, int32_t four, int32_t next) {
#if QUANT_LANES == 8
  sums = _mm256_add_epi32(sums, quant_widened(_mm256_add_epi16(quant_pairs(first, four), quant_pairs(second, next))));
  __asm__("" : "+x"(sums)); /* or GCC alternates between two registers for sums, and runs out of registers */
  return sums;
#else
  return quant_four(quant_four(sums, first, four), second, next);
#endif
}

/* The numbers of a vector of outputs. */
typedef int32_t quant_ints __attribute__((vector_size(4 * QUANT_LANES), aligned(4), may_alias));
typedef float quant_floats __attribute__((vector_size(4 * QUANT_LANES), aligned(4), may_alias));

INLINE quant_floats quant_scales(const uint8_t *scales) {
#if QUANT_LANES == LANES
  return load_bfloat16((const uint16_t *)scales);
#else
  quant_floats wide;
  for (int i = 0; i < QUANT_LANES; i++) wide[i] = widen_bfloat16(((const uint16_t *)scales)[i]);
  return wide;
#endif
}

enum { QUANT_VECTORS = QUANT_BLOCK / QUANT_LANES };

/* Vectors of a block that are summed at once: all, if the registers have room for the sums of this many rows. */
INLINE int quant_vectors(const int rows) { return rows <= 2 ? QUANT_VECTORS : 2; }

/* The number of passes of a tile over a block's weight. */
INLINE int quant_passes(int64_t rows) { return QUANT_VECTORS / quant_vectors((int)rows); }

/* Adds a group's products to `sums`; `from`: its codes, from the first output on; `codes`: [inputs / 4, rows, 4]. */
INLINE void quant_products(quant_codes sums[][QUANT_VECTORS], const uint8_t *from, const int8_t *codes, const int rows,
                           const int vectors) {
#if defined(__AVX512VNNI__)
  if (rows > QUANT_FEW_ROWS) {
    PRAGMA(GCC unroll 1) for (int i = 0; i < QUANT_GROUP; i += 8, from += 8 * QUANT_BLOCK) {
      PRAGMA(GCC unroll 2) for (int half = 0; half < 2; half++, codes += 4 * rows) {
        quant_codes mine[QUANT_VECTORS];
        for (int v = 0; v < vectors; v++) mine[v] = quant_load(from + 4 * (QUANT_LANES * v + QUANT_BLOCK * half));
        for (int r = 0; r < rows; r++) {
          int32_t four;
          memcpy(&four, codes + 4 * r, sizeof four);
          for (int v = 0; v < vectors; v++) sums[r][v] = quant_four_in_place(sums[r][v], mine[v], four);
        }
      }
    }
    return;
  }
#endif
  QUANT_UNROLL for (int i = 0; i < QUANT_GROUP; i += 8, from += 8 * QUANT_BLOCK, codes += 8 * rows) {
    quant_codes first[QUANT_VECTORS], second[QUANT_VECTORS];
    for (int v = 0; v < vectors; v++) {
      first[v] = quant_load(from + 4 * QUANT_LANES * v);
      second[v] = quant_load(from + 4 * (QUANT_BLOCK + QUANT_LANES * v));
    }
    for (int r = 0; r < rows; r++) {
      int32_t four, next;
      memcpy(&four, codes + 4 * r, sizeof four);
      memcpy(&next, codes + 4 * (rows + r), sizeof next);
      for (int v = 0; v < vectors; v++) sums[r][v] = quant_eight(sums[r][v], first[v], second[v], four, next);
    }
  }
}

/* The operands of a tile of rows: `num_groups` groups of a block's weight, from the first group's first byte on, and `codes`
   [groups, inputs of a group / 4, rows, 4]. `later`: as many groups that are needed soon; each of the first `passes` over
   the weight prefetches `lines` cache lines per group. */
typedef struct {
  const uint8_t *weight, *later;
  const int8_t *codes;
  int64_t num_groups;
  int lines, passes;
} quant_operands;

INLINE void quant_ask(const quant_operands *of, int64_t group, const int pass) {
  if (pass >= of->passes) return;
  const uint8_t *later = of->later + group * QUANT_GROUP_BYTES + 64 * pass * of->lines;
  for (int line = 0; line < of->lines; line++) __builtin_prefetch(later + 64 * line, 0, 0);
}

/* Sets `sums` [rows, 32] to the products of a block's codes with a tile's. */
INLINE void quant_tile(const quant_operands *of, int32_t *sums, const int rows) {
  const int vectors = quant_vectors(rows);
  for (int output = 0; output < QUANT_BLOCK; output += vectors * QUANT_LANES) {
    const uint8_t *from = of->weight + 4 * output;
    const int8_t *codes = of->codes;
    quant_codes products[QUANT_ROWS][QUANT_VECTORS];
    for (int r = 0; r < rows; r++)
      for (int v = 0; v < vectors; v++) products[r][v] = quant_none();
    for (int64_t group = 0; group < of->num_groups; group++) {
      quant_ask(of, group, output / (vectors * QUANT_LANES));
      quant_products(products, from, codes, rows, vectors);
      from += QUANT_GROUP_BYTES;
      codes += QUANT_GROUP * rows;
    }
    QUANT_WHOLLY for (int r = 0; r < rows; r++)
      for (int v = 0; v < vectors; v++)
        *(quant_ints *)(sums + r * QUANT_BLOCK + output + QUANT_LANES * v) = (quant_ints)products[r][v];
  }
}

#endif
