/* A packed linear layer on vectors: a group of rows and a block's 32 outputs meet in the registers. */

#include "pairs.h"

enum { LINEAR_MOST_ROWS = 14 }; /* of a group: two vectors of sums each, and three for the operands */

/* `x`: pairs of inputs, those of a group's rows side by side. `ahead`: a block that is asked for on the way, for
   else the arithmetic waits for the memory and then the memory for the arithmetic. */
INLINE void linear_product(const linear_call *call, const element *x, int64_t row, int64_t block, const element *ahead,
                           const int rows) {
  const element *weight = call->weight + block * call->inputs * LINEAR_BLOCK;
  __m512 sum[LINEAR_MOST_ROWS][2];
  for (int r = 0; r < rows; r++) sum[r][0] = sum[r][1] = _mm512_setzero_ps();
  for (int64_t pair = 0; pair < call->inputs / 2; pair++, x += 2 * rows, weight += 2 * LINEAR_BLOCK) {
    __builtin_prefetch(ahead, 0, 2);
    __builtin_prefetch(ahead + LINEAR_BLOCK, 0, 2);
    ahead += 2 * LINEAR_BLOCK;
    const __m512bh first = (__m512bh)_mm512_loadu_si512(weight);
    const __m512bh second = (__m512bh)_mm512_loadu_si512(weight + LINEAR_BLOCK);
    for (int r = 0; r < rows; r++) {
      int32_t both;
      memcpy(&both, x + 2 * r, sizeof both);
      const __m512bh inputs = (__m512bh)_mm512_set1_epi32(both);
      sum[r][0] = _mm512_dpbf16_ps(sum[r][0], inputs, first);
      sum[r][1] = _mm512_dpbf16_ps(sum[r][1], inputs, second);
    }
  }
  for (int r = 0; r < rows; r++) linear_finish(call, row + r, block, sum[r][0], sum[r][1]);
}

/* A group's product in code for just as many rows. */
static void linear_group(const linear_call *call, const element *x, int64_t row, int64_t block, const element *ahead,
                         int64_t rows) {
#define ROWS(count) \
  case count: linear_product(call, x, row, block, ahead, count); break;
  switch (rows) {
    ROWS(1) ROWS(2) ROWS(3) ROWS(4) ROWS(5) ROWS(6) ROWS(7)
    ROWS(8) ROWS(9) ROWS(10) ROWS(11) ROWS(12) ROWS(13) ROWS(14)
  }
#undef ROWS
}

#include "linear_blocks.h"

typedef struct {
  const linear_call *call;
  uint32_t *packed;
} linear_packing;

static void linear_pack_group(const void *data, int64_t group) {
  const linear_packing *packing = data;
  const linear_call *call = packing->call;
  const int64_t row = group * call->rows_per_group, left = call->num_rows - row, pairs = call->inputs / 2;
  const int64_t rows = left < call->rows_per_group ? left : call->rows_per_group;
  const __mmask16 lanes = (__mmask16)((1u << rows) - 1);
  for (int64_t pair = 0; pair < pairs; pair += 16) {
    __m512i mine[16];
    for (int64_t r = 0; r < 16; r++)
      mine[r] = r < rows ? _mm512_loadu_si512(call->x + (row + r) * call->inputs + 2 * pair) : _mm512_setzero_si512();
    transpose_pairs(mine);
    uint32_t *out = packing->packed + row * pairs + pair * rows;
    for (int i = 0; i < 16; i++) _mm512_mask_storeu_epi32(out + i * rows, lanes, mine[i]);
  }
}

static int linear_run(linear_call *call) {
  if (call->num_rows > 1) {
    uint32_t *packed = linear_room((size_t)(call->num_rows * call->inputs) * sizeof(element));
    if (!packed) return -1;
    const linear_packing packing = {call, packed};
    const int64_t num_groups = (call->num_rows + call->rows_per_group - 1) / call->rows_per_group;
    run_items(num_groups, call->num_rows * call->inputs / 4, linear_pack_group, &packing);
    call->x = (const element *)packed;
  }
  run_items(call->items_per_group, call->inputs * call->outputs, linear_item, call);
  return 0;
}
