/* Small products of packed blocks, c = a b or c += a b: the arithmetic of prefill attention.

   A step is STEP elements of the summed dimension: pairs of bfloat16 if the processor multiplies pairs, otherwise
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
#define TILE_ROWS 32 /* rows are a multiple of it, and so are steps * STEP */
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
#endif

/* `rows` rows by `vectors` * TILE_LANES columns, in registers if both are constants. Unless `is_more`, c starts at 0. */
INLINE void NAME(tile_registers)(const packed *a, int a_row, int a_step, const packed_step *b, float *c, const int rows,
                                 int steps, const int vectors, const int is_more) {
#if STEP == 2
  __m512 sum[8][4];
  for (int r = 0; r < rows; r++)
    for (int v = 0; v < vectors; v++)
      sum[r][v] = is_more ? _mm512_loadu_ps(c + r * QUERY_STRIDE + 16 * v) : _mm512_setzero_ps();
  for (int k = 0; k < steps; k++, a += a_step, b += QUERY_STRIDE) {
    __m512bh column[4];
    for (int v = 0; v < vectors; v++) column[v] = (__m512bh)_mm512_loadu_si512(b + 16 * v);
    for (int r = 0; r < rows; r++) {
      int32_t pair;
      memcpy(&pair, a + r * a_row, sizeof pair);
      const __m512bh both = (__m512bh)_mm512_set1_epi32(pair);
      for (int v = 0; v < vectors; v++) sum[r][v] = _mm512_dpbf16_ps(sum[r][v], both, column[v]);
    }
  }
  for (int r = 0; r < rows; r++)
    for (int v = 0; v < vectors; v++) _mm512_storeu_ps(c + r * QUERY_STRIDE + 16 * v, sum[r][v]);
#else
  const tile_vector none = {0};
  tile_vector sum[8][4];
  for (int r = 0; r < rows; r++)
    for (int v = 0; v < vectors; v++)
      sum[r][v] = is_more ? *(const tile_vector *)(c + r * QUERY_STRIDE + TILE_LANES * v) : none;
  for (int k = 0; k < steps; k++, a += a_step, b += QUERY_STRIDE)
    for (int v = 0; v < vectors; v++) {
      const tile_vector column = *(const tile_vector *)(b + TILE_LANES * v);
      for (int r = 0; r < rows; r++) sum[r][v] += a[r * a_row] * column;
    }
  for (int r = 0; r < rows; r++)
    for (int v = 0; v < vectors; v++) *(tile_vector *)(c + r * QUERY_STRIDE + TILE_LANES * v) = sum[r][v];
#endif
}

#if STEP == 2 && defined(__AMX_BF16__)
/* `a_step` is STEP: a tile's rows are neighbours in memory. */
static void NAME(tile_product)(const packed *a, int a_row, int a_step, const packed_step *b, float *c, int rows,
                               int steps, int vectors, const int is_more) {
  const int a_bytes = a_row * 2, stride = QUERY_STRIDE * 4;
  (void)a_step;
  for (int row = 0; row < rows; row += 32)
    for (int vector = 0; vector < vectors; vector += 2) {
      const int has_second = vector + 1 < vectors;
      float *sums = c + row * QUERY_STRIDE + 16 * vector;
      load_sums(sums, 16 * stride, 64, stride, !is_more, has_second);
      for (int k = 0; k < steps; k += 16) {
        const packed_step *mine = b + k * QUERY_STRIDE + 16 * vector;
        _tile_loadd(4, a + row * a_row + 2 * k, a_bytes);
        _tile_loadd(5, a + (row + 16) * a_row + 2 * k, a_bytes);
        _tile_loadd(6, mine, stride);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 5, 6);
        if (has_second) {
          _tile_loadd(7, mine + 16, stride);
          _tile_dpbf16ps(2, 4, 7);
          _tile_dpbf16ps(3, 5, 7);
        }
      }
      store_sums(sums, 16 * stride, 64, stride, has_second);
    }
}
#else
#define ROWS(count, width)                                                                         \
  for (int row = 0; row < rows; row += count)                                                      \
  NAME(tile_registers)(a + row * a_row, a_row, a_step, b, c + row * QUERY_STRIDE, count, steps, width, is_more)

/* An element's value does not depend on the number of rows or vectors. */
INLINE void NAME(tile_product)(const packed *a, int a_row, int a_step, const packed_step *b, float *c, int rows,
                               int steps, int vectors, const int is_more) {
#if defined(__AVX512F__)
  switch (vectors) {
    case 1: ROWS(8, 1); break;
    case 2: ROWS(8, 2); break;
    case 3: ROWS(8, 3); break;
    case 4: ROWS(4, 4); break;
  }
#else
  for (int row = 0; row < rows; row += TILE_ROWS)
    for (int column = 0; column < 16 * vectors; column += 2 * TILE_LANES)
      NAME(tile_registers)
      (a + row * a_row, a_row, a_step, b + column, c + row * QUERY_STRIDE + column, TILE_ROWS, steps, 2, is_more);
#endif
}
#undef ROWS
#endif
