/* Sums of products of 8-bit codes on tiles, the same integers as without tiles: a block's 32 outputs, 32 rows at a time, with
   16 rows or outputs and 64 inputs per tile. */
#if defined(__AMX_INT8__) && !defined(SLUICE_QUANTIZED_TILES)
#define SLUICE_QUANTIZED_TILES

/* Groups of inputs whose weight stays in the cache for all rows. */
enum { QUANT_CHUNK = 8 };

/* Adds the products of groups [group, end) to 32 outputs of at most 32 rows; the first group sets `sums` [32, 32]. */
INLINE void quant_tile_sums(const int8_t *codes, int64_t width, const uint8_t *weight, int64_t group, int64_t end,
                            int32_t *sums, const int has_second) {
  const int8_t *second = codes + 16 * width;
  load_sums(sums, 64, 64 * QUANT_BLOCK, 4 * QUANT_BLOCK, group == 0, has_second);
  for (; group < end; group++) {
    const uint8_t *mine = weight + group * QUANT_GROUP_BYTES;
    _tile_loadd(4, codes + group * QUANT_GROUP, width);
    _tile_loadd(6, mine, 4 * QUANT_BLOCK);
    _tile_dpbsud(0, 4, 6);
    _tile_loadd(7, mine + 2 * QUANT_BLOCK, 4 * QUANT_BLOCK);
    _tile_dpbsud(1, 4, 7);
    if (has_second) {
      _tile_loadd(5, second + group * QUANT_GROUP, width);
      _tile_dpbsud(2, 5, 6);
      _tile_dpbsud(3, 5, 7);
    }
  }
  store_sums(sums, 64, 64 * QUANT_BLOCK, 4 * QUANT_BLOCK, has_second);
}

/* Sets `sums` [rows, 32] to a block's products with `rows` rows; `codes`: [rows, width], `weight`: the block's codes. */
static void quant_tiles(const int8_t *codes, int64_t width, const uint8_t *weight, int64_t num_groups, int64_t rows,
                        int32_t *sums) {
  tile_settings before;
  int64_t configured = 0;
  _tile_storeconfig(&before);
  for (int64_t group = 0; group < num_groups; group += QUANT_CHUNK) {
    const int64_t end = group + QUANT_CHUNK < num_groups ? group + QUANT_CHUNK : num_groups;
    for (int64_t row = 0; row < rows; row += 32) {
      const int64_t left = rows - row < 32 ? rows - row : 32;
      if (left != configured) use_linear_tiles((int)left);
      configured = left;
      if (left > 16)
        quant_tile_sums(codes + row * width, width, weight, group, end, sums + row * QUANT_BLOCK, 1);
      else
        quant_tile_sums(codes + row * width, width, weight, group, end, sums + row * QUANT_BLOCK, 0);
    }
  }
  leave_tiles(&before);
}
#endif
