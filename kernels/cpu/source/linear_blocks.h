/* A packed linear layer without tiles, block by block: `linear_group` computes some rows of a block. */

/* Groups are as equal as possible: with at most 14 rows each, 32 rows are 11, 11 and 10. Strips have full ones. */
INLINE int64_t linear_rows_per_group(int64_t num_rows, int64_t inputs) {
  (void)inputs;
  if (num_rows >= LINEAR_STRIP_ROWS) return LINEAR_MOST_ROWS;
  const int64_t num_groups = (num_rows + LINEAR_MOST_ROWS - 1) / LINEAR_MOST_ROWS;
  return (num_rows + num_groups - 1) / num_groups;
}

/* An item is some blocks of 32 outputs; a block's weight stays in the cache for all rows. */
static void linear_item(const void *data, int64_t item) {
  const linear_call *call = data;
  const int64_t begin = item * call->blocks_per_item, beyond = begin + call->blocks_per_item;
  const int64_t end = beyond < call->num_blocks ? beyond : call->num_blocks;
  for (int64_t block = begin; block < end; block++)
    for (int64_t row = 0; row < call->num_rows; row += call->rows_per_group) {
      const int64_t left = call->num_rows - row, rows = left < call->rows_per_group ? left : call->rows_per_group;
      linear_group(call, row, block, rows);
    }
}
