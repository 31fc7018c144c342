/* Small products of packed blocks, c += a b: the arithmetic of prefill attention.

   `a` is [rows, steps * STEP] and `b` is [steps, columns] of STEP elements each: b holds bfloat16 in pairs of
   neighbours along the summed dimension where the processor multiplies pairs, and float32 elsewhere. */

#if IS_BFLOAT16 && defined(__AVX512BF16__)
#define STEP 2
#define packed uint16_t
#define packed_step uint32_t
#define PACK(x) (x)
#define PACK_WEIGHT(x) narrow_bfloat16(x)
#else
#define STEP 1
#define packed float
#define packed_step float
#define PACK(x) WIDEN(x)
#define PACK_WEIGHT(x) (x)
#endif

/* `rows` <= 4 rows by `vectors` * 16 columns, in registers where both are constants. */
INLINE void NAME(tile_registers)(const packed *a, int a_stride, const packed_step *b, int b_stride, float *c,
                                 int c_stride, const int rows, int steps, const int vectors) {
#if STEP == 2
  __m512 sum[4][4];
  for (int r = 0; r < rows; r++)
    for (int v = 0; v < vectors; v++) sum[r][v] = _mm512_loadu_ps(c + r * c_stride + 16 * v);
  for (int k = 0; k < steps; k++) {
    __m512bh column[4];
    for (int v = 0; v < vectors; v++) column[v] = (__m512bh)_mm512_loadu_si512(b + (int64_t)k * b_stride + 16 * v);
    for (int r = 0; r < rows; r++) {
      int32_t pair;
      memcpy(&pair, a + r * a_stride + 2 * k, sizeof pair);
      const __m512bh both = (__m512bh)_mm512_set1_epi32(pair);
      for (int v = 0; v < vectors; v++) sum[r][v] = _mm512_dpbf16_ps(sum[r][v], both, column[v]);
    }
  }
  for (int r = 0; r < rows; r++)
    for (int v = 0; v < vectors; v++) _mm512_storeu_ps(c + r * c_stride + 16 * v, sum[r][v]);
#else
  float16v sum[4][4];
  for (int r = 0; r < rows; r++)
    for (int v = 0; v < vectors; v++) sum[r][v] = *(const float16v *)(c + r * c_stride + 16 * v);
  for (int k = 0; k < steps; k++)
    for (int v = 0; v < vectors; v++) {
      const float16v column = *(const float16v *)(b + (int64_t)k * b_stride + 16 * v);
      for (int r = 0; r < rows; r++) sum[r][v] += a[r * a_stride + k] * column;
    }
  for (int r = 0; r < rows; r++)
    for (int v = 0; v < vectors; v++) *(float16v *)(c + r * c_stride + 16 * v) = sum[r][v];
#endif
}

#if defined(__AVX512F__)
#define TILE_VECTORS 4
#elif defined(__AVX2__)
#define TILE_VECTORS 1
#else
#define TILE_VECTORS 1
#endif

INLINE void NAME(tile_rows)(const packed *a, int a_stride, const packed_step *b, int b_stride, float *c, int c_stride,
                            const int rows, int steps, int columns) {
  int first = 0;
  for (; first + 16 * TILE_VECTORS <= columns; first += 16 * TILE_VECTORS)
    NAME(tile_registers)(a, a_stride, b + first, b_stride, c + first, c_stride, rows, steps, TILE_VECTORS);
  for (; first < columns; first += 16)
    NAME(tile_registers)(a, a_stride, b + first, b_stride, c + first, c_stride, rows, steps, 1);
}

#if STEP == 2 && defined(__AMX_BF16__)
#ifndef SLUICE_TILES
#define SLUICE_TILES
/* Eight tiles of 16 rows of 64 bytes, all alike. What another library had configured comes back at the end. */
typedef struct {
  uint8_t bytes[64];
} tile_settings;

static void use_tiles(tile_settings *before) {
  tile_settings mine = {{0}};
  _tile_storeconfig(before);
  mine.bytes[0] = 1;
  for (int tile = 0; tile < 8; tile++) {
    mine.bytes[16 + 2 * tile] = 64;
    mine.bytes[48 + tile] = 16;
  }
  _tile_loadconfig(&mine);
}

static void leave_tiles(const tile_settings *before) { _tile_loadconfig(before); }
#endif

/* columns: a multiple of 32, steps: of 16. Rows are taken in sixteens: a and c have room for them. */
static void NAME(tile_product)(const packed *a, int a_stride, const packed_step *b, int b_stride, float *c, int c_stride,
                               int rows, int steps, int columns) {
  const int a_bytes = a_stride * 2, b_bytes = b_stride * 4, c_bytes = c_stride * 4;
  for (int row = 0; row < rows; row += 32) {
    const int has_second = row + 16 < rows;
    for (int column = 0; column < columns; column += 32) {
      float *first = c + row * c_stride + column, *second = first + 16 * c_stride;
      _tile_loadd(0, first, c_bytes);
      _tile_loadd(1, first + 16, c_bytes);
      if (has_second) {
        _tile_loadd(2, second, c_bytes);
        _tile_loadd(3, second + 16, c_bytes);
      }
      for (int k = 0; k < steps; k += 16) {
        _tile_loadd(6, b + (int64_t)k * b_stride + column, b_bytes);
        _tile_loadd(7, b + (int64_t)k * b_stride + column + 16, b_bytes);
        _tile_loadd(4, a + row * a_stride + 2 * k, a_bytes);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if (has_second) {
          _tile_loadd(5, a + (row + 16) * a_stride + 2 * k, a_bytes);
          _tile_dpbf16ps(2, 5, 6);
          _tile_dpbf16ps(3, 5, 7);
        }
      }
      _tile_stored(0, first, c_bytes);
      _tile_stored(1, first + 16, c_bytes);
      if (has_second) {
        _tile_stored(2, second, c_bytes);
        _tile_stored(3, second + 16, c_bytes);
      }
    }
  }
}
#else
/* columns: a multiple of 16. An element's value does not hang on the number of rows. */
static void NAME(tile_product)(const packed *a, int a_stride, const packed_step *b, int b_stride, float *c, int c_stride,
                               int rows, int steps, int columns) {
  int row = 0;
  for (; row + 4 <= rows; row += 4)
    NAME(tile_rows)(a + row * a_stride, a_stride, b, b_stride, c + row * c_stride, c_stride, 4, steps, columns);
  for (; row < rows; row++)
    NAME(tile_rows)(a + row * a_stride, a_stride, b, b_stride, c + row * c_stride, c_stride, 1, steps, columns);
}
#endif
