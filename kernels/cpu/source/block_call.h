/* A call of block_linear: how it is cut into items, and its memory. */
#ifndef SLUICE_BLOCK_CALL
#define SLUICE_BLOCK_CALL

/* The fewest and the most bytes of an item's weight, the fewest items, and the most rows per item without its last tiles'
   padding. */
enum { BLOCK_LEAST_ITEM = 32 << 10, BLOCK_LARGEST_ITEM = 1 << 20, BLOCK_ITEMS = 16, BLOCK_MOST_ROWS = 256 };

/* The fewest rows that are worth configuring tile registers. */
enum { QUANT_TILE_ROWS = 32 };

/* Rows form tiles that are as equal as possible. */
typedef struct {
  const void *x, *bias;
  const float *means; /* [rows], of the whole tokens if x is a part of them, or null */
  void *out;
  int8_t *codes; /* [tiles, groups, 8, rows of a tile, 4] */
  block_factor *factors; /* [tiles, groups, rows of a tile]: with a scale per group */
  quant_factor *token_factors; /* [rows], with a scale per token, as are the next two */
  quant_outlier *outliers;
  quant_rests *rests;
  int64_t num_rows, rows_per_tile, rows_per_item, inputs, outputs, num_groups, num_blocks, blocks_per_item, items_per_rows;
  int64_t most_outliers; /* per row */
  int gelu, has_token_scales, has_tiles, is_shifted /* any row */;
  block_part parts[BLOCK_MOST_SEGMENTS];
} block_call;

INLINE int64_t block_rows_left(const block_call *call, int64_t row) {
  const int64_t left = call->num_rows - row;
  return left < call->rows_per_tile ? left : call->rows_per_tile;
}

INLINE int64_t block_num_tiles(const block_call *call) {
  return (call->num_rows + call->rows_per_tile - 1) / call->rows_per_tile;
}

INLINE int64_t block_num_items(const block_call *call) {
  return (call->num_rows + call->rows_per_item - 1) / call->rows_per_item * call->items_per_rows;
}

/* The codes of a row. */
INLINE int64_t block_width(const block_call *call) { return call->num_groups * BLOCK_SIZE; }

INLINE int64_t block_most_tile_rows(const block_call *call) {
  if (call->has_token_scales) return call->has_tiles ? 1 /* a row's codes are neighbours */ : QUANT_ROWS;
#if defined(__AVX512VNNI__)
  if (call->num_rows >= BLOCK_MANY_ROWS) return BLOCK_STRETCH_ROWS;
#endif
  return BLOCK_ROWS;
}

/* Sets how the call is cut into items. */
static void block_plan(block_call *call, const uint8_t *weight, const block_segment *segments, int64_t num_segments) {
  const int64_t num_rows = call->num_rows;
  call->num_blocks = block_parts(weight, segments, num_segments, call->inputs, call->parts);
  const block_part *last = call->parts + num_segments - 1;
  const int64_t block_bytes = (last->weight + last->num_blocks * last->num_units * last->unit_bytes - weight) / call->num_blocks;
  int64_t item_bytes = call->num_blocks * block_bytes / BLOCK_ITEMS;
  if (item_bytes < BLOCK_LEAST_ITEM) item_bytes = BLOCK_LEAST_ITEM;
  if (item_bytes > BLOCK_LARGEST_ITEM) item_bytes = BLOCK_LARGEST_ITEM;
  call->outputs = last->first_output + last->outputs;
  call->blocks_per_item = (item_bytes + block_bytes - 1) / block_bytes;
  call->items_per_rows = (call->num_blocks + call->blocks_per_item - 1) / call->blocks_per_item;
  call->has_token_scales = block_forms[segments->form].groups == 0;
#if defined(__AMX_INT8__)
  call->has_tiles = call->has_token_scales && num_rows >= QUANT_TILE_ROWS;
#endif
  call->num_groups = call->has_token_scales ? last->form.groups : (call->inputs + BLOCK_SIZE - 1) / BLOCK_SIZE;
  if (call->has_token_scales) call->most_outliers = quant_most_outliers(block_width(call), call->means != NULL);
  const int64_t most_rows = block_most_tile_rows(call), least_tiles = (num_rows + most_rows - 1) / most_rows;
  call->rows_per_tile = (num_rows + least_tiles - 1) / least_tiles;
  const int64_t num_tiles = block_num_tiles(call), num_parts = (num_rows + BLOCK_MOST_ROWS - 1) / BLOCK_MOST_ROWS;
  call->rows_per_item = (num_tiles + num_parts - 1) / num_parts * call->rows_per_tile;
}

/* Returns the bytes of memory that a call needs, and sets its parts of `room` unless that is null. */
static int64_t block_place(block_call *call, void *room) {
  const int64_t num_rows = call->num_rows, num_tokens = call->has_token_scales ? num_rows : 0;
  const int64_t num_factors = call->has_token_scales ? 0 : num_rows * call->num_groups;
  const int64_t num_outliers = num_rows * call->most_outliers;
  if (room) {
    call->factors = room;
    call->token_factors = (void *)(call->factors + num_factors);
    call->outliers = (void *)(call->token_factors + num_tokens);
    call->rests = (void *)(call->outliers + num_outliers);
    call->codes = (void *)(call->rests + num_tokens);
  }
  return num_factors * (int64_t)sizeof(block_factor) + num_outliers * (int64_t)sizeof(quant_outlier) +
         num_tokens * (int64_t)(sizeof(quant_factor) + sizeof(quant_rests)) + num_rows * block_width(call);
}

/* Sets what follows from the codes of all rows. */
static void block_find_shifts(block_call *call) {
  for (int64_t row = 0; call->has_token_scales && row < call->num_rows; row++) call->is_shifted |= call->rests[row].shift != 0;
}
#endif
