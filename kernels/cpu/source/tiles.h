/* The tile registers of AMX. */
#if defined(__AMX_TILE__) && !defined(SLUICE_TILES)
#define SLUICE_TILES
#include <immintrin.h>

typedef struct {
  uint8_t bytes[64];
} tile_settings;

/* Configures eight equal tiles of 16 rows of 64 bytes. leave_tiles restores the configuration of another library. */
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

/* Sets tiles 0 to 3 to the 2 by 2 sums at `sums`, or to 0. `next` and `second` are the bytes from tile 0 to
   tile 1 and to tile 2; tiles 2 and 3 exist only with `has_second`. */
INLINE void load_sums(const void *sums, int64_t next, int64_t second, int stride, const int is_zero, const int has_second) {
  const char *at = sums;
  if (is_zero) {
    _tile_zero(0);
    _tile_zero(1);
    if (!has_second) return;
    _tile_zero(2);
    _tile_zero(3);
  } else {
    _tile_loadd(0, at, stride);
    _tile_loadd(1, at + next, stride);
    if (!has_second) return;
    _tile_loadd(2, at + second, stride);
    _tile_loadd(3, at + second + next, stride);
  }
}

INLINE void store_sums(void *sums, int64_t next, int64_t second, int stride, const int has_second) {
  char *at = sums;
  _tile_stored(0, at, stride);
  _tile_stored(1, at + next, stride);
  if (!has_second) return;
  _tile_stored(2, at + second, stride);
  _tile_stored(3, at + second + next, stride);
}

static void leave_tiles(const tile_settings *before) { _tile_loadconfig(before); }

/* Tiles 0 to 3 are 2 by 2 sums, 4 and 5 the rows, 6 and 7 the weight. `rows` is at most 32. */
static void use_linear_tiles(int rows) {
  tile_settings mine = {{0}};
  const int first = rows < 16 ? rows : 16, second = rows - first;
  const int tile_rows[8] = {first, first, second, second, first, second, 16, 16};
  mine.bytes[0] = 1;
  for (int tile = 0; tile < 8; tile++)
    if (tile_rows[tile]) {
      mine.bytes[16 + 2 * tile] = 64;
      mine.bytes[48 + tile] = (uint8_t)tile_rows[tile];
    }
  _tile_loadconfig(&mine);
}
#endif
