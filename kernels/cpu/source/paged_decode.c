/* Attention of rows with one new token each: see kernels/operations/paged_decode.py.

   A row's keys are cut into splits, the blocks of keys of paged_kv.h. An item is (some splits, some key/value heads).
   A split is computed for all rows that have its keys in the same pages, row after row, while the keys are in the cache.
   A row's head has the same bits in any batch, with any number of threads, and as a token of a prompt (paged_kv.h).
   A head's part of a token is two or four cache lines, and pages can be anywhere, so the processor cannot predict them. An
   item therefore prefetches its memory in order, some tokens with all the item's heads and then the next ones, from the
   first split's K through its V to the last split's V. An item has as many heads as leave enough items for the threads: with
   fewer heads the stretches of memory are shorter and are read more slowly. */

#ifndef SLUICE_PAGED_DECODE
#define SLUICE_PAGED_DECODE
enum {
  ENOUGH_ITEMS = 2, /* per thread, or else heads are split among items */
  MANY_ITEMS = 32,  /* from here on an item is up to MAX_GROUPS splits, one after the other */
  MAX_GROUPS = 4,
  MAX_ITEM_QUERIES = 64,
  FEW_SHARING = 2, /* the rows of a group up to which turning K does not pay */
  NEAR_KEYS = 4,
  TILE_KEYS = 32, /* at a time on tiles */
  NEAR_CHAINS = 8,
  NOTHING_AHEAD = -1
};
/* Whether lines are prefetched into the L2 cache, which more lines can be on their way to, or into the L1 cache alone, which
   keeps the contents of the others; and the distance. Elements of bfloat16 were measured on Zen 4. */
#if defined(__AVX512BF16__)
#define PREFETCHES_FAR (IS_BFLOAT16 && !IS_CODES && sluice_prefetches_far)
#else
#define PREFETCHES_FAR 1
#endif
#define AHEAD_BYTES ((PREFETCHES_FAR ? 12 : 6) << 10)

/* The registers of a query, or of four keys, for score_keys. */
#define TURNED_QUADS(head_dim) (((head_dim) + QUAD_LANES * UNIT - 1) / (QUAD_LANES * UNIT) * 4)

/* Queries as score_keys takes them, and the factors of their products with K. */
typedef struct {
  const char *rows;
  const float *scales;
} decode_queries;
#endif

typedef struct {
  NAME(paged_decode_arguments) of;
  const decode_plan *plan;
  char *queries;      /* [rows, heads, queries, QUERY_BYTES], and their scales */
  float *scales;
  softmax *softmaxes; /* [splits, heads, queries] */
  float *sums;        /* [splits, heads, queries, PADDED_DIM] */
  int64_t heads_an_item, groups_an_item;
} NAME(paged_decode_call);

#if IS_BFLOAT16 && defined(__AVX512BF16__)
#define UNIT 2 /* elements of a unit of quads */
#define LEVEL_FACTOR(x) _mm512_cvtss_f32(powers_of_2(_mm512_set1_ps(x)))

INLINE void NAME(narrow_all)(const float *x, int64_t size, element *out) {
  for (int64_t i = 0; i < size; i += 16) store_vector(out + i, lanes_of(size - i), _mm512_loadu_ps(x + i));
}
#else
#define UNIT 1
#define LEVEL_FACTOR power_of_2

INLINE void NAME(narrow_all)(const float *x, int64_t size, element *out) {
  SIMD for (int64_t i = 0; i < size; i++) out[i] = NARROW(x[i]);
}
#endif
#define KV(x) NAME(x)
#define kv_element element
#define WIDEN_KV WIDEN
#define IS_CODES 0
#define IS_FLOAT16 0
#include "attend_split.h"

#define KV(x) NAME(x##_int8)
#define kv_element int8_t
#define WIDEN_KV widen_float32
#define IS_CODES 1
#define IS_FLOAT16 0
#include "attend_split.h"

#if !IS_BFLOAT16
#define KV(x) NAME(x##_float16)
#define kv_element uint16_t
#define WIDEN_KV widen_float16
#define IS_CODES 0
#define IS_FLOAT16 1
#include "attend_split.h"
#define FLOAT16_ITEM NAME(paged_decode_item_float16)
#else
#define FLOAT16_ITEM 0
#endif

/* Merges the splits of one row and query, in order. */
static void NAME(paged_decode_merge)(const NAME(paged_decode_call) *call, int64_t row, int64_t query) {
  const int64_t head_dim = call->of.head_dim, step = call->of.num_heads * call->of.queries_a_head;
  const int64_t first = call->plan->first_split[row] * step + query, end = call->plan->first_split[row + 1] * step;
  element *out = (element *)call->of.out + (row * step + query) * head_dim;
  softmax all = {call->of.sinks ? call->of.sinks[query] * LOG2_E : LOWEST, call->of.sinks ? 1.0f : 0.0f};
  float sums[PADDED_DIM(MAX_HEAD_DIM)] __attribute__((aligned(LINE_BYTES)));
  memset(sums, 0, sizeof(float) * (size_t)PADDED_DIM(head_dim));
  for (int64_t i = first; i < end; i += step) {
    const softmax mine = call->softmaxes[i];
    const float level = mine.level > all.level ? mine.level : all.level, *more = call->sums + i * PADDED_DIM(head_dim);
    const float keep = LEVEL_FACTOR(all.level - level), add = LEVEL_FACTOR(mine.level - level);
    all = (softmax){level, fused(all.total, keep, mine.total * add)};
    SIMD for (int64_t d = 0; d < head_dim; d++) sums[d] = fused(sums[d], keep, more[d] * add);
  }
  const float inverse = 1.0f / all.total;
  SIMD for (int64_t d = 0; d < head_dim; d++) sums[d] *= inverse;
  NAME(narrow_all)(sums, head_dim, out);
}

static void NAME(paged_decode_row)(const void *data, int64_t row) {
  const NAME(paged_decode_call) *call = data;
  for (int64_t query = 0; query < call->of.num_heads * call->of.queries_a_head; query++)
    NAME(paged_decode_merge)(call, row, query);
}

/* Returns 0, or -1 without memory. */
PUBLIC int NAME(paged_decode)(const NAME(paged_decode_arguments) *of) {
  const int64_t num_rows = of->num_rows, num_heads = of->num_heads, head_dim = of->head_dim;
  const int64_t queries_a_head = of->queries_a_head;
  decode_plan plan = {.page_tables = of->page_tables, .num_keys = of->num_keys, .num_rows = num_rows,
                      .table_stride = of->table_stride, .page_size = of->page_size, .window = of->window};
  if (plan_splits(&plan)) return -1;
  const int64_t num_splits = plan.num_splits, num_sums = num_splits * num_heads * queries_a_head;
  if (num_splits == 0) { /* rows of no keys are padding */
    free(plan.first_split);
    return 0;
  }
  const size_t sums_bytes = (size_t)(num_sums * PADDED_DIM(head_dim)) * sizeof(float); /* whole lines */
  const int is_int16 = UNIT == 2 && of->key_scales, num_queries = (int)(num_rows * num_heads * queries_a_head);
  const size_t queries_bytes = (size_t)num_queries * (is_int16 ? 2 * (size_t)PADDED_DIM(head_dim) : TURNED_QUADS(head_dim) * sizeof(quads));
  const size_t bytes = sums_bytes + queries_bytes + (size_t)num_sums * sizeof(softmax) + (size_t)num_queries * sizeof(float);
  float *sums = aligned_alloc(LINE_BYTES, (bytes | (LINE_BYTES - 1)) + 1);
  if (!sums) {
    free(plan.first_split);
    return -1;
  }
  const int64_t wanted_parts = (ENOUGH_ITEMS * sluice_num_threads() + plan.num_groups - 1) / plan.num_groups;
  const int64_t most_heads = MAX_ITEM_QUERIES / queries_a_head;
  int64_t heads_an_item = wanted_parts < num_heads ? num_heads / wanted_parts : 1;
  if (heads_an_item > most_heads) heads_an_item = most_heads;
  const int64_t in_a_row = plan.num_groups / MANY_ITEMS;
  const int64_t groups_an_item = in_a_row < 1 ? 1 : in_a_row < MAX_GROUPS ? in_a_row : MAX_GROUPS;
  const int64_t num_items = (plan.num_groups + groups_an_item - 1) / groups_an_item *
                            ((num_heads + heads_an_item - 1) / heads_an_item);
  NAME(paged_decode_call)
  call = {*of, &plan, (char *)sums + sums_bytes, 0, 0, sums, heads_an_item, groups_an_item};
  call.softmaxes = (softmax *)(void *)(call.queries + queries_bytes);
  call.scales = (float *)(call.softmaxes + num_sums);
  run_items(num_rows, num_queries * PADDED_DIM(head_dim),
            of->key_scales ? NAME(prepare_row_int8) : NAME(prepare_row), &call);
  run_items(num_items, plan.total_keys * num_heads * (1 + queries_a_head) * head_dim,
            of->key_scales ? NAME(paged_decode_item_int8) : of->is_float16 ? FLOAT16_ITEM : NAME(paged_decode_item), &call);
  run_items(num_rows, num_sums * PADDED_DIM(head_dim) / 4, NAME(paged_decode_row), &call);
  free(sums);
  free(plan.first_split);
  return 0;
}
#undef FLOAT16_ITEM
#undef UNIT
#undef LEVEL_FACTOR
