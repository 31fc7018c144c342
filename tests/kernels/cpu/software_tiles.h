/* The tile instructions in plain C, for processors without them: included before the sources of the `amx` kernels.

   They follow Intel's Software Developer's Manual, volume 2: LDTILECFG, TILELOADD, TDPBF16PS, TDPBSUD. Using a tile that was
   not configured, or beyond its configured size, ends the process. */
#include <immintrin.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
} software_settings;

static __thread software_settings tile_settings_now;
static __thread uint8_t tile_bytes[8][16][64] __attribute__((aligned(64)));

static inline void check_tile(int tile) {
  const software_settings *now = &tile_settings_now;
  if (now->palette != 1 || tile > 7 || now->rows[tile] < 1 || now->rows[tile] > 16 || now->row_bytes[tile] > 64) abort();
}

static inline void software_loadconfig(const void *settings) {
  memcpy(&tile_settings_now, settings, 64);
  memset(tile_bytes, 0, sizeof tile_bytes);
}

static inline void software_storeconfig(void *settings) { memcpy(settings, &tile_settings_now, 64); }

static inline void software_zero(int tile) {
  check_tile(tile);
  memset(tile_bytes[tile], 0, sizeof tile_bytes[tile]);
}

static inline void software_loadd(int tile, const void *base, int64_t stride) {
  software_zero(tile);
  for (int row = 0; row < tile_settings_now.rows[tile]; row++)
    memcpy(tile_bytes[tile][row], (const char *)base + row * stride, tile_settings_now.row_bytes[tile]);
}

static inline void software_stored(int tile, void *base, int64_t stride) {
  check_tile(tile);
  for (int row = 0; row < tile_settings_now.rows[tile]; row++)
    memcpy((char *)base + row * stride, tile_bytes[tile][row], tile_settings_now.row_bytes[tile]);
}

/* Tile products need three different tiles of matching sizes. */
static inline void check_product(int sums, int left, int right) {
  check_tile(sums), check_tile(left), check_tile(right);
  const software_settings *now = &tile_settings_now;
  if (sums == left || sums == right || left == right) abort();
  if (now->rows[sums] != now->rows[left] || now->row_bytes[left] != 4 * now->rows[right] ||
      now->row_bytes[sums] != now->row_bytes[right])
    abort();
}

static inline float software_float(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

/* The products of even elements and of odd ones are summed apart, by fused multiply-adds, before they are added to the sums. */
static __attribute__((noipa)) void software_dot_row(const uint32_t *left, const uint8_t (*right)[64], int pairs, int columns,
                                                    float *sums) {
  float even[16] = {0}, odd[16] = {0};
  for (int pair = 0; pair < pairs; pair++) {
    const float first = software_float(left[pair] << 16), second = software_float(left[pair] & 0xffff0000u);
    uint32_t both[16];
    memcpy(both, right[pair], sizeof both);
#pragma omp simd
    for (int column = 0; column < 16; column++) {
      even[column] = __builtin_fmaf(first, software_float(both[column] << 16), even[column]);
      odd[column] = __builtin_fmaf(second, software_float(both[column] & 0xffff0000u), odd[column]);
    }
  }
  for (int column = 0; column < columns; column++) sums[column] += even[column] + odd[column];
}

/* The instruction takes denormal numbers for 0 and rounds to the nearest; it ignores MXCSR. */
static inline void software_dpbf16ps(int sums, int left, int right) {
  enum { DENORMALS_ARE_ZERO = 0x0040, FLUSH_TO_ZERO = 0x8000, NO_EXCEPTIONS = 0x1f80 };
  check_product(sums, left, right);
  const software_settings *now = &tile_settings_now;
  const unsigned before = _mm_getcsr();
  _mm_setcsr(NO_EXCEPTIONS | DENORMALS_ARE_ZERO | FLUSH_TO_ZERO);
  for (int row = 0; row < now->rows[sums]; row++)
    software_dot_row((const uint32_t *)(const void *)tile_bytes[left][row], tile_bytes[right], now->row_bytes[left] / 4,
                     now->row_bytes[sums] / 4, (float *)(void *)tile_bytes[sums][row]);
  _mm_setcsr(before);
}

static inline void software_dpbsud(int sums, int left, int right) {
  check_product(sums, left, right);
  const software_settings *now = &tile_settings_now;
  for (int row = 0; row < now->rows[sums]; row++)
    for (int four = 0; four < now->row_bytes[left] / 4; four++)
      for (int column = 0; column < now->row_bytes[sums] / 4; column++) {
        int32_t sum;
        memcpy(&sum, &tile_bytes[sums][row][4 * column], 4);
        for (int i = 0; i < 4; i++)
          sum += (int8_t)tile_bytes[left][row][4 * four + i] * tile_bytes[right][four][4 * column + i];
        memcpy(&tile_bytes[sums][row][4 * column], &sum, 4);
      }
}

#undef _tile_loadconfig
#undef _tile_storeconfig
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#undef _tile_dpbsud
#undef _tile_release
#define _tile_loadconfig software_loadconfig
#define _tile_storeconfig software_storeconfig
#define _tile_zero software_zero
#define _tile_loadd software_loadd
#define _tile_stored software_stored
#define _tile_dpbf16ps software_dpbf16ps
#define _tile_dpbsud software_dpbsud
#define _tile_release() ((void)0)
