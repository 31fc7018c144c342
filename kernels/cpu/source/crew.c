/* A crew (crew.h), and the replay of captured calls by one (kernels/cpu/capture.py). */
#define _GNU_SOURCE
#include "parallel.h"
#include "captured_call.h"

#include <sched.h>
#include <time.h>

/* An operation's items are claimed by a compare-and-swap on one word: the number of the operation, how many items it has
   and the next one. So nothing of an operation that is over can be claimed, however late a thread comes, and what its
   claim succeeds for is what it has read about it. */
enum { ITEM_BITS = 20, SPINS = 4096 };
#define MAX_ITEMS ((int64_t)(1 << ITEM_BITS) - 1)
#define NEXT_ITEM(word) ((int64_t)((word) & (uint64_t)MAX_ITEMS))
#define NUM_ITEMS(word) ((int64_t)((word) >> ITEM_BITS & (uint64_t)MAX_ITEMS))

struct crew {
  _Atomic uint64_t word;
  _Atomic(item_fn) run_item;
  _Atomic(const void *) call;
  _Atomic int64_t num_done;
  uint64_t num_operations; /* of the leader alone */
  _Atomic int is_over;
};

static _Thread_local crew *led_crew = 0;

crew *sluice_led_crew(void) { return led_crew; }

/* Waits a little; soon, other programs' threads and those that this one waits for may have the core. */
static inline void wait_a_little(int *num_waits) {
  if (++*num_waits > SPINS) sched_yield();
#if defined(__x86_64__)
  else __builtin_ia32_pause();
#endif
}

/* Runs one item if there is one; returns whether there was. */
static int take_item(crew *mine) {
  uint64_t word = atomic_load_explicit(&mine->word, memory_order_acquire);
  while (NEXT_ITEM(word) < NUM_ITEMS(word)) {
    const item_fn run_item = atomic_load_explicit(&mine->run_item, memory_order_relaxed);
    const void *call = atomic_load_explicit(&mine->call, memory_order_relaxed);
    if (atomic_compare_exchange_weak_explicit(&mine->word, &word, word + 1, memory_order_acq_rel, memory_order_acquire)) {
      run_item(call, NEXT_ITEM(word));
      atomic_fetch_add_explicit(&mine->num_done, 1, memory_order_release);
      return 1;
    }
  }
  return 0;
}

static void run_some(crew *led, int64_t num_items, item_fn run_item, const void *call) {
  atomic_store_explicit(&led->run_item, run_item, memory_order_relaxed);
  atomic_store_explicit(&led->call, call, memory_order_relaxed);
  atomic_store_explicit(&led->num_done, 0, memory_order_relaxed);
  const uint64_t word = ++led->num_operations << 2 * ITEM_BITS | (uint64_t)num_items << ITEM_BITS;
  atomic_store_explicit(&led->word, word, memory_order_release);
  while (take_item(led)) continue;
  for (int num_waits = 0; atomic_load_explicit(&led->num_done, memory_order_acquire) < num_items;) wait_a_little(&num_waits);
}

typedef struct {
  item_fn run_item;
  const void *call;
  int64_t first;
} later_items;

static void run_later_item(const void *data, int64_t item) {
  const later_items *later = data;
  later->run_item(later->call, later->first + item);
}

void sluice_run_with_crew(crew *led, int64_t num_items, item_fn run_item, const void *call) {
  if (num_items <= MAX_ITEMS) {
    run_some(led, num_items, run_item, call);
    return;
  }
  for (int64_t first = 0; first < num_items; first += MAX_ITEMS) {
    const later_items later = {run_item, call, first};
    run_some(led, num_items - first < MAX_ITEMS ? num_items - first : MAX_ITEMS, run_later_item, &later);
  }
}

typedef struct {
  crew crew;
  const captured_call *calls;
  int64_t num_calls, failed, *ended_ns;
  _Atomic int has_leader;
} replay;

static int64_t monotonic_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void lead(replay *mine) {
  led_crew = &mine->crew;
  for (int64_t i = 0; i < mine->num_calls && mine->failed < 0; i++) {
    if (mine->calls[i].run(mine->calls[i].arguments) != 0) mine->failed = i;
    if (mine->ended_ns) mine->ended_ns[i] = monotonic_ns();
  }
  led_crew = 0;
  atomic_store_explicit(&mine->crew.is_over, 1, memory_order_release);
}

static void follow(crew *mine) {
  for (int num_waits = 0; !atomic_load_explicit(&mine->is_over, memory_order_acquire);)
    if (take_item(mine)) num_waits = 0;
    else wait_a_little(&num_waits);
}

/* The thread that comes first leads: nobody waits for those that must be woken. */
static void join(void *data) {
  replay *mine = data;
  if (atomic_exchange_explicit(&mine->has_leader, 1, memory_order_relaxed)) follow(&mine->crew);
  else lead(mine);
}

/* Makes the calls one after another; returns -1, or the index of the one that ran out of memory: none after it is made.
   `ended_ns`, where it is not null, is set to the time at which each call ended. */
__attribute__((visibility("default"))) int64_t sluice_replay(const captured_call *calls, int64_t num_calls,
                                                             int64_t *ended_ns) {
  replay mine = {.calls = calls, .num_calls = num_calls, .failed = -1, .ended_ns = ended_ns};
  if (sluice_parallel_region) sluice_parallel_region(join, &mine, 0, 0);
  else join(&mine);
  return mine.failed;
}
