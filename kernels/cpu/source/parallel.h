/* One parallel region: a crew of threads takes items one by one until none is left. */
#ifndef SLUICE_PARALLEL_H
#define SLUICE_PARALLEL_H

#include <stdatomic.h>
#include <stdint.h>

typedef void (*parallel_region_fn)(void (*work)(void *), void *data, unsigned num_threads, unsigned flags);
typedef void (*item_fn)(const void *call, int64_t item);

extern parallel_region_fn sluice_parallel_region;

typedef struct {
  item_fn run_item;
  const void *call;
  int64_t num_items;
  _Atomic int64_t next_item;
} crew;

static void take_items(void *data) {
  crew *mine = data;
  for (;;) {
    int64_t item = atomic_fetch_add_explicit(&mine->next_item, 1, memory_order_relaxed);
    if (item >= mine->num_items) return;
    mine->run_item(mine->call, item);
  }
}

/* Runs all items; in this thread alone where their `work` (elements, roughly) is less than waking the others costs. */
static inline void run_items(int64_t num_items, int64_t work, item_fn run_item, const void *call) {
  enum { LEAST_WORK = 1 << 15 };
  if (num_items <= 1 || work < LEAST_WORK || !sluice_parallel_region) {
    for (int64_t item = 0; item < num_items; item++) run_item(call, item);
    return;
  }
  crew all = {run_item, call, num_items, 0};
  sluice_parallel_region(take_items, &all, 0, 0); /* 0 threads: as many as torch was told to use */
}

#endif
