/* The products of tile_product.h on tiles. An instruction adds 32 elements of the summed dimension, counted from its first one,
   as in decode (decode_tiles.h).

   Codes and the parts of int16 are whole numbers that bfloat16 holds, and sums of their products are below 2^24: exact. */

/* Sets `out` [32, 32] to a product of 32 rows with one or two vectors of columns, `out_bytes` from row to row. */
INLINE void NAME(sum_tiles)(const packed *a, int a_row, const packed_step *b, int steps, const int has_second, float *out,
                            int out_bytes) {
  const packed *second = a + 16 * a_row;
  load_sums(0, 0, 0, 0, 1, has_second);
  for (int k = 0; k < steps; k += 16, b += 16 * QUERY_STRIDE) {
    _tile_loadd(4, a + 2 * k, 2 * a_row);
    _tile_loadd(5, second + 2 * k, 2 * a_row);
    _tile_loadd(6, b, 4 * QUERY_STRIDE);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 5, 6);
    if (has_second) {
      _tile_loadd(7, b + 16, 4 * QUERY_STRIDE);
      _tile_dpbf16ps(2, 4, 7);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  store_sums(out, 16 * out_bytes, 64, out_bytes, has_second);
}

/* `a` has steps side by side. If there are codes, the low parts of `b` are LOW_PARTS behind the high ones. */
static void NAME(tile_product)(const packed *a, int a_row, int a_step, const packed_step *b, float *c, int rows, int steps,
                               int vectors, const product_kind kind, const block_factors *factors) {
  const int has_codes = kind == CODE_SCORES || kind == CODE_VALUES;
  const int low_parts = kind == CODE_SCORES ? LOW_QUERY : LOW_WEIGHTS;
  float room[2][32 * 32] __attribute__((aligned(64)));
  (void)a_step;
  for (int row = 0; row < rows; row += 32, a += 32 * a_row, c += 32 * QUERY_STRIDE)
    for (int vector = 0; vector < vectors; vector += 2) {
      const int count = vector + 1 < vectors ? 2 : 1;
      for (int part = 0; part < 1 + has_codes; part++) {
        float *out = kind == SCORES ? c + 16 * vector : room[part];
        const int out_bytes = kind == SCORES ? 4 * QUERY_STRIDE : 4 * 32;
        const packed_step *columns = b + 16 * vector + part * low_parts;
        if (count == 2) NAME(sum_tiles)(a, a_row, columns, steps, 1, out, out_bytes);
        else NAME(sum_tiles)(a, a_row, columns, steps, 0, out, out_bytes);
      }
      for (int v = 0; kind != SCORES && v < count; v++)
        for (int r = 0; r < 32; r++) {
          const int at = 32 * r + 16 * v, q = 16 * (vector + v);
          float *out = c + r * QUERY_STRIDE + q;
          __m512 sum = _mm512_load_ps(room[0] + at);
          if (has_codes) {
            const __m512i high = _mm512_slli_epi32(_mm512_cvtps_epi32(sum), 8);
            const __m512i whole = _mm512_add_epi32(high, _mm512_cvtps_epi32(_mm512_load_ps(room[1] + at)));
            if (kind == CODE_SCORES) {
              _mm512_storeu_si512(out, whole);
              continue;
            }
            sum = _mm512_mul_ps(_mm512_cvtepi32_ps(whole), _mm512_loadu_ps(factors->units + q));
          }
          sum = _mm512_mul_ps(sum, _mm512_loadu_ps(factors->add + q));
          _mm512_storeu_ps(out, _mm512_fmadd_ps(_mm512_loadu_ps(out), _mm512_loadu_ps(factors->keep + q), sum));
        }
    }
}
