/* The tile registers of AMX. */
#if defined(__AMX_TILE__) && !defined(SLUICE_TILES)
#define SLUICE_TILES
#include <immintrin.h>

typedef struct {
  uint8_t bytes[64];
} tile_settings;

/* Compilers do not know what memory the intrinsics read; what is written before this line is there. */
#define WRITE_BEFORE_TILES() __asm__ volatile("" ::: "memory")

static void configure_tiles(const int *rows, const int *row_bytes) {
  tile_settings mine = {{0}};
  mine.bytes[0] = 1;
  for (int tile = 0; tile < 8; tile++)
    if (rows[tile]) {
      mine.bytes[16 + 2 * tile] = (uint8_t)row_bytes[tile];
      mine.bytes[48 + tile] = (uint8_t)rows[tile];
    }
  WRITE_BEFORE_TILES();
  _tile_loadconfig(&mine);
}

#define EIGHT(number) {number, number, number, number, number, number, number, number}

/* Configures eight equal tiles of 16 rows of 64 bytes. leave_tiles restores the configuration of another library. */
static void use_tiles(tile_settings *before) {
  _tile_storeconfig(before);
  configure_tiles((const int[])EIGHT(16), (const int[])EIGHT(64));
}

/* Tiles 0 and 1 are scores of 16 keys with `num_queries` queries, 2 and 3 K or pairs of V, 4 the queries, 5 and 6 sums of V,
   7 weights. */
static void use_decode_tiles(int num_queries, tile_settings *before) {
  const int n = num_queries, width = 4 * n;
  _tile_storeconfig(before);
  configure_tiles((const int[]){16, 16, 16, 16, 16, n, n, n}, (const int[]){width, width, 64, 64, width, 64, 64, 64});
}

/* Sets tiles 0 to 3 to the 2 by 2 sums at `sums`, or to 0. `next` and `second` are the bytes from tile 0 to
   tile 1 and to tile 2; tiles 2 and 3 exist only with `has_second`. */
INLINE void load_sums(const void *sums, int64_t next, int64_t second, int stride, const int is_zero, const int has_second) {
  const char *at = sums;
  WRITE_BEFORE_TILES();
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
  const int first = rows < 16 ? rows : 16, second = rows - first;
  configure_tiles((const int[]){first, first, second, second, first, second, 16, 16}, (const int[])EIGHT(64));
}
#undef EIGHT
#endif
