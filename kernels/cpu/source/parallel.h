/* One parallel operation: threads take its items until none is left. */
#ifndef SLUICE_PARALLEL_H
#define SLUICE_PARALLEL_H

#include "crew.h"

#include <stddef.h>
#include <stdint.h>

typedef void (*parallel_region_fn)(void (*work)(void *), void *data, unsigned num_threads, unsigned flags);

extern parallel_region_fn sluice_parallel_region;

/* Returns how many threads take items. */
int sluice_num_threads(void);

/* Returns memory that this thread's next call gets again, so that it need not be made each time, or null. */
void *kept_room(size_t size);

/* Runs all items; in this thread alone where their `work` (elements, roughly) is less than the others' attention costs:
   little where a crew waits for it, more where threads must be woken. */
static inline void run_items(int64_t num_items, int64_t work, item_fn run_item, const void *call) {
  enum { LEAST_WORK = 1 << 15, LEAST_WORK_OF_A_CREW = 1 << 12 };
  const int64_t least_work = sluice_leads_crew() ? LEAST_WORK_OF_A_CREW : LEAST_WORK;
  if (num_items <= 1 || work < least_work) {
    for (int64_t item = 0; item < num_items; item++) run_item(call, item);
  } else {
    sluice_run_with_crew(num_items, run_item, call);
  }
}

/* Rows that threads take together. */
typedef struct {
  item_fn run_row;
  const void *call;
  int64_t num_rows, rows_per_item;
} row_spans;

static void run_row_span(const void *data, int64_t span) {
  const row_spans *all = data;
  const int64_t begin = span * all->rows_per_item, left = all->num_rows - begin;
  const int64_t end = begin + (left < all->rows_per_item ? left : all->rows_per_item);
  for (int64_t row = begin; row < end; row++) all->run_row(all->call, row);
}

/* Runs items of so many elements each, which are alike and short: taken one by one, the next item's number, in the cache of
   another core each time, would take as long as a row. */
static inline void run_rows(int64_t num_rows, int64_t elements, item_fn run_row, const void *call) {
  enum { SPAN_ELEMENTS = 1 << 14, SPANS_OF_A_THREAD = 4 };
  const int64_t most = num_rows / (SPANS_OF_A_THREAD * sluice_num_threads());
  int64_t rows_per_item = SPAN_ELEMENTS / elements;
  if (rows_per_item > most) rows_per_item = most;
  if (rows_per_item < 1) rows_per_item = 1;
  const row_spans spans = {run_row, call, num_rows, rows_per_item};
  run_items((num_rows + rows_per_item - 1) / rows_per_item, num_rows * elements, run_row_span, &spans);
}

#endif
