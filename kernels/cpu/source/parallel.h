/* One parallel operation: threads take items until none is left. */
#ifndef SLUICE_PARALLEL_H
#define SLUICE_PARALLEL_H

#include "crew.h"

#include <stddef.h>
#include <stdint.h>

typedef void (*parallel_region_fn)(void (*work)(void *), void *data, unsigned num_threads, unsigned flags);

extern parallel_region_fn sluice_parallel_region;

/* Whether this processor's cores read memory faster into the L2 cache than into the L1 cache alone. */
extern int sluice_prefetches_far;

/* Returns how many threads take items. */
int sluice_num_threads(void);

/* Returns memory that is kept for this thread's next call, or null. */
void *kept_room(size_t size);

/* Runs all items, distributed in this order; in this thread alone if their `work` (elements, roughly) is less than the cost
   of other threads, which is small if a crew is waiting and larger if threads must be woken. */
static inline void run_ordered_items(item_order order, int64_t num_items, int64_t work, item_fn run_item, const void *call) {
  enum { LEAST_WORK = 1 << 15, LEAST_WORK_OF_A_CREW = 1 << 12 };
  const int64_t least_work = sluice_leads_crew() ? LEAST_WORK_OF_A_CREW : LEAST_WORK;
  if (num_items <= 1 || work < least_work) {
    for (int64_t item = 0; item < num_items; item++) run_item(call, item);
  } else {
    sluice_run_with_crew(order, num_items, run_item, call);
  }
}

static inline void run_items(int64_t num_items, int64_t work, item_fn run_item, const void *call) {
  run_ordered_items(IN_STRETCHES, num_items, work, run_item, call);
}

#endif
