/* A packed linear layer on tiles. */

/* In bytes: a step's weight, the rows that stay in a core's cache, and the prefetch distance of the weight. Then the most rows
   per group, and the inputs whose weight stays in the cache for all rows of a group. */
enum { LINEAR_TILE_STEP = 2048, LINEAR_ROWS = 768 << 10, LINEAR_AHEAD = 8192 };
enum { LINEAR_MOST_TILE_ROWS = 512, LINEAR_TILE_CHUNK = 256 };

static int64_t linear_rows_per_group(int64_t num_rows, int64_t inputs) {
  (void)num_rows;
  const int64_t rows = LINEAR_ROWS / (inputs * 2) / 32 * 32;
  return rows < 32 ? 32 : rows > LINEAR_MOST_TILE_ROWS ? LINEAR_MOST_TILE_ROWS : rows;
}

/* Adds the products of inputs [input, end) to 32 outputs of at most 32 rows. */
INLINE void linear_sums(const linear_call *call, int64_t row, int64_t block, int64_t input, const int64_t end,
                        float *sums, const int has_second, const int is_streamed) {
  const int stride = (int)(call->inputs * 2);
  const char *weight = (const char *)call->weight + block * call->inputs * 64 + input * 64;
  const element *x = call->prepared ? (const element *)call->prepared : call->x;
  const element *first = x + row * call->inputs, *second = first + 16 * call->inputs;
  load_sums(sums, 64, 64 * LINEAR_BLOCK, 4 * LINEAR_BLOCK, input == 0, has_second);
  for (; input < end; input += 32, weight += LINEAR_TILE_STEP) {
    if (is_streamed)
      for (int line = 0; line < LINEAR_TILE_STEP; line += 64)
        __builtin_prefetch(weight + LINEAR_AHEAD + line, 0, 3);
    _tile_loadd(4, first + input, stride);
    _tile_loadd(6, weight, 128);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, weight + 64, 128);
    _tile_dpbf16ps(1, 4, 7);
    if (has_second) {
      _tile_loadd(5, second + input, stride);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  store_sums(sums, 64, 64 * LINEAR_BLOCK, 4 * LINEAR_BLOCK, has_second);
}

/* An item is some blocks of 32 outputs of a group of rows, which stay in a core's cache from block to block. */
static void linear_item(const void *data, int64_t item) {
  const linear_call *call = data;
  const int64_t begin = item / call->items_per_group * call->rows_per_group;
  const int64_t end = begin + call->rows_per_group < call->num_rows ? begin + call->rows_per_group : call->num_rows;
  const int64_t first_block = item % call->items_per_group * call->blocks_per_item;
  float sums[LINEAR_MOST_TILE_ROWS * LINEAR_BLOCK] __attribute__((aligned(64)));
  tile_settings before;
  int64_t configured = 0;
  const int64_t chunk = end - begin > 32 ? LINEAR_TILE_CHUNK : call->inputs;
  _tile_storeconfig(&before);
  for (int64_t block = first_block; block < first_block + call->blocks_per_item && block < call->num_blocks; block++)
    for (int64_t input = 0; input < call->inputs; input += chunk) {
      const int64_t beyond = input + chunk < call->inputs ? input + chunk : call->inputs;
      for (int64_t row = begin; row < end; row += 32) {
        const int64_t num_rows = end - row < 32 ? end - row : 32;
        float *mine = sums + (row - begin) * LINEAR_BLOCK;
        if (num_rows != configured) use_linear_tiles((int)num_rows);
        configured = num_rows;
        if (num_rows > 16 && row > begin)
          linear_sums(call, row, block, input, beyond, mine, 1, 0);
        else if (num_rows > 16)
          linear_sums(call, row, block, input, beyond, mine, 1, 1);
        else if (row > begin)
          linear_sums(call, row, block, input, beyond, mine, 0, 0);
        else
          linear_sums(call, row, block, input, beyond, mine, 0, 1);
        if (beyond == call->inputs)
          for (int64_t r = 0; r < num_rows; r++)
            linear_finish(call, row + r, block, _mm512_load_ps(mine + r * LINEAR_BLOCK),
                          _mm512_load_ps(mine + r * LINEAR_BLOCK + 16));
      }
    }
  leave_tiles(&before);
}

INLINE int64_t linear_room(const linear_call *call) {
  return call->is_rounded ? call->num_rows * call->inputs * (int64_t)sizeof(element) : 0; /* else products read x itself */
}

/* Rounds a group's rows. */
static void linear_prepare(const void *data, int64_t group) {
  const linear_call *call = data;
  const int64_t begin = group * call->rows_per_group * call->inputs, end = begin + call->rows_per_group * call->inputs;
  const int64_t all = call->num_rows * call->inputs;
  for (int64_t at = begin; at < (end < all ? end : all); at += 32)
    _mm512_storeu_si512((element *)call->prepared + at, linear_pairs(call, at));
}

static int64_t linear_num_items(const linear_call *call) { return linear_num_groups(call) * call->items_per_group; }
static void linear_any_item(const void *data, int64_t item) { linear_item(data, item); }
