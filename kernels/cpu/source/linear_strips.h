/* A packed linear layer of many rows on vectors of 8 floats. A block's weights of some inputs become floats, in two strips of
   16 outputs: a strip fills half of the L1 cache while all tiles of 6 rows use it. Their sums wait in memory for the next
   inputs. */

#ifndef SLUICE_LINEAR_STRIPS
#define SLUICE_LINEAR_STRIPS
/* The fewest rows that are worth making strips; outputs per strip; the most inputs converted at a time, and the most tiles
   per group. */
enum { LINEAR_STRIP_ROWS = 41, LINEAR_STRIP = 16, LINEAR_CHUNK = 256, LINEAR_TILES = 86 };

/* Tiles have 6 rows, the last one or two have 4: 512 rows are 84 and 2 tiles. The last one may lack a row. */
INLINE int64_t linear_num_tiles(int64_t num_rows) { return (num_rows + LINEAR_MOST_ROWS - 1) / LINEAR_MOST_ROWS; }

/* Inputs that are converted at a time: chunks are as equal as possible. */
INLINE int64_t linear_inputs_per_chunk(int64_t inputs) {
  const int64_t num_chunks = (inputs + LINEAR_CHUNK - 1) / LINEAR_CHUNK;
  return (inputs / 32 + num_chunks - 1) / num_chunks * 32;
}

INLINE int64_t linear_first_row(int64_t tile, int64_t num_rows) {
  const int64_t num_tiles = linear_num_tiles(num_rows), num_short = (num_tiles * LINEAR_MOST_ROWS - num_rows) / 2;
  const int64_t rows = tile * LINEAR_MOST_ROWS, num_before = tile - (num_tiles - num_short);
  return num_before > 0 ? rows - 2 * num_before : rows;
}

/* Adds the products of some inputs to a tile: weight [inputs, 16], x [inputs, 6], sums [6, 16]. GCC would read a weight again
   for each product if it were not bound to a register, and keep the sums in memory if their loops were not unrolled. */
INLINE void linear_tile_of(const float *weight, const float *x, int64_t inputs, float *sums, int is_first, const int rows) {
  __m256 sum[LINEAR_MOST_ROWS][2];
  PRAGMA(GCC unroll 6) for (int r = 0; r < rows; r++)
    PRAGMA(GCC unroll 2) for (int v = 0; v < 2; v++)
      sum[r][v] = is_first ? _mm256_setzero_ps() : _mm256_loadu_ps(sums + LINEAR_STRIP * r + 8 * v);
  for (int64_t input = 0; input < inputs; input += 2, weight += 2 * LINEAR_STRIP, x += 2 * LINEAR_MOST_ROWS)
    for (int which = 0; which < 2; which++) {
      __m256 first = _mm256_loadu_ps(weight + LINEAR_STRIP * which);
      __m256 second = _mm256_loadu_ps(weight + LINEAR_STRIP * which + 8);
      __asm__("" : "+x"(first), "+x"(second));
      for (int r = 0; r < rows; r++) {
        const __m256 mine = _mm256_broadcast_ss(x + LINEAR_MOST_ROWS * which + r);
        sum[r][0] = _mm256_fmadd_ps(mine, first, sum[r][0]);
        sum[r][1] = _mm256_fmadd_ps(mine, second, sum[r][1]);
      }
    }
  PRAGMA(GCC unroll 6) for (int r = 0; r < rows; r++)
    PRAGMA(GCC unroll 2) for (int v = 0; v < 2; v++) _mm256_storeu_ps(sums + LINEAR_STRIP * r + 8 * v, sum[r][v]);
}

static void linear_tile(const float *weight, const float *x, int64_t inputs, float *sums, int is_first, int64_t rows) {
  if (rows > 4) linear_tile_of(weight, x, inputs, sums, is_first, LINEAR_MOST_ROWS);
  else linear_tile_of(weight, x, inputs, sums, is_first, 4);
}
#endif

/* weight: of a block and some inputs. */
INLINE void linear_widen_block(const element *weight, int64_t inputs, float *strips) {
  for (int64_t input = 0; input < inputs; input += 2, weight += 2 * LINEAR_BLOCK, strips += 2 * LINEAR_STRIP)
    for (int which = 0; which < 2; which++)
      for (int v = 0; v < 4; v++)
        _mm256_storeu_ps(strips + v / 2 * LINEAR_CHUNK * LINEAR_STRIP + which * LINEAR_STRIP + v % 2 * 8,
                         linear_weights(weight + 8 * LINEAR_PAIR * v, which));
}

/* An item is a block of a group of tiles. Meanwhile it prefetches the following weights. */
static void linear_strip_item(const void *data, int64_t item) {
  const linear_call *call = data;
  const int64_t num_tiles = linear_num_tiles(call->num_rows), block = item % call->num_blocks;
  const int64_t first = item / call->num_blocks * LINEAR_TILES, beyond = first + LINEAR_TILES;
  const int64_t last = beyond < num_tiles ? beyond : num_tiles, line = 64 / (int64_t)sizeof(element);
  float strips[2 * LINEAR_CHUNK * LINEAR_STRIP] __attribute__((aligned(64)));
  float all_sums[2 * LINEAR_TILES * LINEAR_MOST_ROWS * LINEAR_STRIP] __attribute__((aligned(64)));
  const element *weight = call->weight + block * call->inputs * LINEAR_BLOCK;
  const int64_t chunk = linear_inputs_per_chunk(call->inputs);
  for (int64_t input = 0; input < call->inputs; input += chunk) {
    const int64_t left = call->inputs - input, inputs = left < chunk ? left : chunk;
    const int64_t share = inputs * LINEAR_BLOCK / (2 * (last - first));
    const float *x = (const float *)call->prepared + input * num_tiles * LINEAR_MOST_ROWS;
    float *sums = all_sums;
    linear_widen_block(weight, inputs, strips);
    weight += inputs * LINEAR_BLOCK;
    const element *ahead = weight;
    for (int half = 0; half < 2; half++)
      for (int64_t tile = first; tile < last; tile++, sums += LINEAR_MOST_ROWS * LINEAR_STRIP) {
        const int64_t row = linear_first_row(tile, call->num_rows), rows = linear_first_row(tile + 1, call->num_rows) - row;
        for (int64_t asked = 0; asked < share; asked += line, ahead += line) __builtin_prefetch(ahead, 0, 2);
        linear_tile(strips + half * LINEAR_CHUNK * LINEAR_STRIP, x + tile * inputs * LINEAR_MOST_ROWS, inputs, sums,
                    input == 0, rows);
        if (input + inputs == call->inputs)
          for (int64_t r = 0; r < rows && row + r < call->num_rows; r++)
            linear_finish(call, row + r, block * LINEAR_BLOCK + half * LINEAR_STRIP, sums + r * LINEAR_STRIP, LINEAR_STRIP);
      }
  }
}
