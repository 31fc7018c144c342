/* Small products of packed blocks: the arithmetic of prefill attention.

   A step is STEP elements of the summed dimension: pairs of bfloat16 or of int16 if the processor multiplies pairs, otherwise
   float32. `a` is [rows, steps] of them, rows `a_row` elements apart and steps `a_step`; `b` is [steps, columns] of them
   and c [rows, columns], both with rows QUERY_STRIDE columns apart. Columns are taken in vectors of 16. */

#if IS_BFLOAT16 && defined(__AVX512BF16__)
#define STEP 2
#define packed uint16_t
#define packed_step uint32_t
#else
#define STEP 1
#define packed float
#define packed_step float
#endif

#if STEP == 2 && defined(__AMX_BF16__)
#define ON_TILES 1
#else
#define ON_TILES 0
#endif

#if ON_TILES
#define TILE_ROWS 32 /* rows are a multiple of it, and so are steps * STEP of a product on tiles */
#elif defined(__AVX512F__)
#define TILE_ROWS 8
#else
#define TILE_ROWS 4
#endif

#ifndef SLUICE_TILE_VECTOR
#define SLUICE_TILE_VECTOR
#if defined(__AVX512F__)
enum { TILE_LANES = 16 };
#elif defined(__AVX2__)
enum { TILE_LANES = 8 };
#else
enum { TILE_LANES = 4 };
#endif
/* As many floats as a register holds: compilers keep sums of larger vectors in memory. */
typedef float tile_vector __attribute__((vector_size(4 * TILE_LANES), aligned(4), may_alias));

/* The steps from the high parts of int16 to the low ones, see prefill_tiles.h. */
enum { LOW_QUERY = MAX_HEAD_DIM / 2 * MAX_QUERIES, LOW_WEIGHTS = BLOCK / 2 * QUERY_STRIDE };

/* What becomes of the sums of a product: scores, integers from codes, or what a block adds to the sums of V. */
typedef enum { SCORES, CODE_SCORES, VALUES, CODE_VALUES } product_kind;

/* By query: the factors of the sums so far and of a block's own, and the unit of the block's weights as integers. */
typedef struct {
  const float *keep, *add, *units;
} block_factors;

INLINE tile_vector tile_fused(tile_vector a, tile_vector b, tile_vector c) {
#if defined(__AVX512F__)
  return (tile_vector)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
  return (tile_vector)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__ARM_FEATURE_FMA)
  for (int i = 0; i < TILE_LANES; i++) a[i] = fused(a[i], b[i], c[i]);
  return a;
#else
  return a * b + c;
#endif
}
#endif

#if ON_TILES
#include "prefill_tiles.h"
#else
/* One step of `vectors` * TILE_LANES columns of `rows` rows. */
INLINE void NAME(tile_step)(const packed *a, int a_row, const packed_step *b, tile_vector sum[8][4], const int rows,
                            const int vectors, const product_kind kind) {
#if STEP == 2
  __m512i column[4];
  for (int v = 0; v < vectors; v++) column[v] = _mm512_loadu_si512(b + 16 * v);
  for (int r = 0; r < rows; r++) {
    int32_t pair;
    memcpy(&pair, a + r * a_row, sizeof pair);
    const __m512i both = _mm512_set1_epi32(pair);
    for (int v = 0; v < vectors; v++)
      if (kind == CODE_SCORES || kind == CODE_VALUES)
        sum[r][v] = (tile_vector)_mm512_dpwssd_epi32((__m512i)sum[r][v], both, column[v]);
      else sum[r][v] = (tile_vector)_mm512_dpbf16_ps((__m512)sum[r][v], (__m512bh)both, (__m512bh)column[v]);
  }
#else
  (void)kind;
  for (int v = 0; v < vectors; v++) {
    const tile_vector column = *(const tile_vector *)(b + TILE_LANES * v);
    for (int r = 0; r < rows; r++) sum[r][v] += a[r * a_row] * column;
  }
#endif
}

/* `rows` rows by `vectors` * TILE_LANES columns, in registers if both are constants. A score is the sum of QUAD_LANES / 4
   chains, as score_keys of decode adds them; a value is one chain. */
INLINE void NAME(tile_registers)(const packed *a, int a_row, int a_step, const packed_step *b, float *c, const int rows,
                                 int steps, const int vectors, const product_kind kind, const block_factors *factors) {
  const int num_chains = kind == SCORES ? QUAD_LANES / 4 : 1;
  for (int chain = 0; chain < num_chains; chain++) {
    tile_vector sum[8][4];
    for (int r = 0; r < rows; r++)
      for (int v = 0; v < vectors; v++) sum[r][v] = (tile_vector){0};
    if (num_chains > 1) {
      for (int k = 4 * chain; k < steps; k += QUAD_LANES)
        for (int i = k; i < k + 4; i++)
          NAME(tile_step)(a + i * a_step, a_row, b + i * QUERY_STRIDE, sum, rows, vectors, kind);
    } else {
      for (int k = 0; k < steps; k++)
        NAME(tile_step)(a + k * a_step, a_row, b + k * QUERY_STRIDE, sum, rows, vectors, kind);
    }
    for (int r = 0; r < rows; r++)
      for (int v = 0; v < vectors; v++) {
        tile_vector *out = (tile_vector *)(c + r * QUERY_STRIDE + TILE_LANES * v), mine = sum[r][v];
        if (kind == VALUES || kind == CODE_VALUES) {
          const int q = TILE_LANES * v;
#if STEP == 2
          if (kind == CODE_VALUES)
            mine = (tile_vector)_mm512_cvtepi32_ps((__m512i)mine) * *(const tile_vector *)(factors->units + q);
#endif
          *out = tile_fused(*out, *(const tile_vector *)(factors->keep + q), mine * *(const tile_vector *)(factors->add + q));
        } else {
          *out = chain ? (tile_vector)(*out + mine) : mine;
        }
      }
  }
}

#define ROWS(count, width)                                                                         \
  for (int row = 0; row < rows; row += count)                                                      \
  NAME(tile_registers)(a + row * a_row, a_row, a_step, b, c + row * QUERY_STRIDE, count, steps, width, kind, factors)

/* An element's value does not depend on the number of rows or vectors. */
INLINE void NAME(tile_product)(const packed *a, int a_row, int a_step, const packed_step *b, float *c, int rows,
                               int steps, int vectors, const product_kind kind, const block_factors *factors) {
#if defined(__AVX512F__)
  switch (vectors) {
    case 1: ROWS(8, 1); break;
    case 2: ROWS(8, 2); break;
    case 3: ROWS(8, 3); break;
    case 4: ROWS(4, 4); break;
  }
#else
  for (int column = 0; column < 16 * vectors; column += 2 * TILE_LANES) {
    const block_factors mine = factors ? (block_factors){factors->keep + column, factors->add + column, 0} : (block_factors){0};
    for (int row = 0; row < rows; row += TILE_ROWS)
      NAME(tile_registers)
      (a + row * a_row, a_row, a_step, b + column, c + row * QUERY_STRIDE + column, TILE_ROWS, steps, 2, kind, &mine);
  }
#endif
}
#undef ROWS
#endif
