/* Crews (crew.h), and the replay of captured calls by a crew (kernels/cpu/capture.py). */
#define _GNU_SOURCE
#include "parallel.h"
#include "captured_call.h"
#include "team.h"
#include "wait.h"

#include <stdatomic.h>
#include <time.h>

/* An operation's items are cut into one stretch per thread, which takes them in order: neighbouring items mostly read
   neighbouring memory, and one long stretch of memory per thread is read faster than short ones by turns. A thread that is
   done takes half of the remaining items of another thread. By turns, all threads share one stretch.
   Items are claimed by a compare-and-swap on the stretch's word: the number of the operation, the end of the remaining items
   and the next item. So a late thread cannot claim an item of an operation that is over, and a claim that succeeds is for the
   operation whose fields the thread has read. */
enum { ITEM_BITS = 20, MOST_STRETCHES = 256 };
#define MAX_ITEMS ((int64_t)(1 << ITEM_BITS) - 1)
#define NEXT_ITEM(word) ((int64_t)((word) & (uint64_t)MAX_ITEMS))
#define OPERATION(word) ((word) >> 2 * ITEM_BITS)
#define END_ITEM(word) ((int64_t)((word) >> ITEM_BITS & (uint64_t)MAX_ITEMS))

typedef struct {
  _Alignas(64) _Atomic uint64_t word;
} stretch;

typedef struct {
  stretch stretches[MOST_STRETCHES];
  int most_stretches, has_one_operation;
  _Alignas(64) _Atomic int num_stretches; /* of an operation */
  _Atomic(item_fn) run_item;
  _Atomic(const void *) call;
  _Atomic uint64_t num_operations;
  _Atomic int is_over, num_threads;
  _Alignas(64) _Atomic int64_t num_done;
} crew;

static _Thread_local crew *led_crew = 0;

int sluice_leads_crew(void) { return led_crew != 0; }

/* Runs the next item of a thread's own stretch; returns 0 if there is none. */
static int take_item(crew *mine, stretch *own) {
  uint64_t word = atomic_load_explicit(&own->word, memory_order_acquire);
  while (NEXT_ITEM(word) < END_ITEM(word)) {
    const item_fn run_item = atomic_load_explicit(&mine->run_item, memory_order_relaxed);
    const void *call = atomic_load_explicit(&mine->call, memory_order_relaxed);
    if (atomic_compare_exchange_weak_explicit(&own->word, &word, word + 1, memory_order_acq_rel, memory_order_acquire)) {
      run_item(call, NEXT_ITEM(word));
      atomic_fetch_add_explicit(&mine->num_done, 1, memory_order_release);
      return 1;
    }
  }
  return 0;
}

/* Moves the second half of the remaining items of another thread's stretch to a thread's own, if that is empty; returns whether
   its own has items. The leader may set the stretches of the next operation while a late thread still looks for items of
   the last one: no item moves from one operation to the other. */
static int take_half(stretch *own, stretch *other) {
  const uint64_t mine = atomic_load_explicit(&own->word, memory_order_relaxed);
  if (NEXT_ITEM(mine) < END_ITEM(mine)) return 1;
  uint64_t word = atomic_load_explicit(&other->word, memory_order_acquire);
  while (NEXT_ITEM(word) < END_ITEM(word) && OPERATION(word) == OPERATION(mine)) {
    const uint64_t half = (uint64_t)(END_ITEM(word) - NEXT_ITEM(word) + 1) / 2, rest = word - (half << ITEM_BITS);
    if (atomic_compare_exchange_weak_explicit(&other->word, &word, rest, memory_order_acq_rel, memory_order_acquire)) {
      const uint64_t first = (uint64_t)END_ITEM(rest);
      atomic_store_explicit(&own->word, (word & ~(uint64_t)MAX_ITEMS) | first, memory_order_release);
      return 1;
    }
  }
  return 0;
}

/* Runs items as thread number `thread`, until it finds none. */
static void take_items(crew *mine, int thread) {
  const int num_stretches = atomic_load_explicit(&mine->num_stretches, memory_order_relaxed);
  stretch *own = mine->stretches + thread % num_stretches;
  for (int i = 0; i < num_stretches; i++) {
    if (i && !take_half(own, mine->stretches + (thread + i) % num_stretches)) continue;
    while (take_item(mine, own)) continue;
    i = 0;
  }
}

static void run_some(crew *led, item_order order, int64_t num_items, item_fn run_item, const void *call) {
  const int num_stretches = order == IN_STRETCHES ? led->most_stretches : 1;
  atomic_store_explicit(&led->num_stretches, num_stretches, memory_order_relaxed);
  atomic_store_explicit(&led->run_item, run_item, memory_order_relaxed);
  atomic_store_explicit(&led->call, call, memory_order_relaxed);
  atomic_store_explicit(&led->num_done, 0, memory_order_relaxed);
  const uint64_t number = atomic_load_explicit(&led->num_operations, memory_order_relaxed) + 1;
  for (int i = 0; i < num_stretches; i++) {
    const int64_t first = num_items * i / num_stretches, end = num_items * (i + 1) / num_stretches;
    const uint64_t word = number << 2 * ITEM_BITS | (uint64_t)end << ITEM_BITS | (uint64_t)first;
    atomic_store_explicit(&led->stretches[i].word, word, memory_order_release);
  }
  atomic_store_explicit(&led->num_operations, number, memory_order_release);
  take_items(led, 0);
  if (led->has_one_operation) return; /* the region's end waits for the others, without a core */
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

static void run_all(crew *led, item_order order, int64_t num_items, item_fn run_item, const void *call) {
  if (num_items <= MAX_ITEMS) {
    run_some(led, order, num_items, run_item, call);
    return;
  }
  for (int64_t first = 0; first < num_items; first += MAX_ITEMS) {
    const later_items later = {run_item, call, first};
    run_some(led, order, num_items - first < MAX_ITEMS ? num_items - first : MAX_ITEMS, run_later_item, &later);
  }
}

static void follow(crew *mine, int thread) {
  uint64_t seen = 0;
  for (int num_waits = 0; !atomic_load_explicit(&mine->is_over, memory_order_acquire);) {
    const uint64_t number = atomic_load_explicit(&mine->num_operations, memory_order_acquire);
    if (number != seen) {
      take_items(mine, thread);
      if (mine->has_one_operation) return;
      seen = number, num_waits = 0;
    } else {
      wait_a_little(&num_waits);
    }
  }
}

typedef void (*lead_fn)(void *data);

typedef struct {
  crew crew;
  lead_fn lead;
  void *data;
} region;

/* The first thread to arrive leads, so that no thread waits for others to wake up. */
static void join(void *data) {
  region *mine = data;
  const int thread = atomic_fetch_add_explicit(&mine->crew.num_threads, 1, memory_order_relaxed);
  if (thread) {
    if (thread < mine->crew.most_stretches) follow(&mine->crew, thread);
    return;
  }
  led_crew = &mine->crew;
  mine->lead(mine->data);
  led_crew = 0;
  atomic_store_explicit(&mine->crew.is_over, 1, memory_order_release);
}

/* The first operation sets the stretches of a region; no thread looks at them before. */
static void init_region(region *mine, lead_fn lead, void *data, int has_one_operation) {
  const int num_threads = sluice_num_threads();
  mine->crew.most_stretches = num_threads < MOST_STRETCHES ? num_threads : MOST_STRETCHES;
  mine->crew.has_one_operation = has_one_operation;
  atomic_init(&mine->crew.num_operations, 0);
  atomic_init(&mine->crew.is_over, 0);
  atomic_init(&mine->crew.num_threads, 0);
  mine->lead = lead, mine->data = data;
}

/* Runs `lead` with a crew. */
static void run_region(lead_fn lead, void *data, int has_one_operation) {
  region mine;
  init_region(&mine, lead, data, has_one_operation);
  if (sluice_parallel_region) sluice_parallel_region(join, &mine, 0, 0); /* 0 threads: the number set in torch */
  else join(&mine);
}

typedef struct {
  item_order order;
  int64_t num_items;
  item_fn run_item;
  const void *call;
} operation;

static void lead_operation(void *data) {
  const operation *only = data;
  run_all(led_crew, only->order, only->num_items, only->run_item, only->call);
}

void sluice_run_with_crew(item_order order, int64_t num_items, item_fn run_item, const void *call) {
  operation only = {order, num_items, run_item, call};
  if (led_crew) lead_operation(&only);
  else run_region(lead_operation, &only, num_items <= MAX_ITEMS);
}

typedef struct {
  const captured_call *calls;
  int64_t num_calls, failed, *ended_ns;
} replay;

static int64_t monotonic_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void lead_replay(void *data) {
  replay *mine = data;
  for (int64_t i = 0; i < mine->num_calls && mine->failed < 0; i++) {
    if (mine->calls[i].run(mine->calls[i].arguments) != 0) mine->failed = i;
    if (mine->ended_ns) mine->ended_ns[i] = monotonic_ns();
  }
}

/* Makes the calls one after another; returns -1, or the index of the call that ran out of memory, after which it stops.
   Unless `ended_ns` is null, it is set to the time at which each call ended. */
__attribute__((visibility("default"))) int64_t sluice_replay(const captured_call *calls, int64_t num_calls,
                                                             int64_t *ended_ns) {
  replay mine = {calls, num_calls, -1, ended_ns};
  run_region(lead_replay, &mine, 0);
  return mine.failed;
}

/* The replay in progress, if any. */
static struct {
  region region;
  replay replay;
} begun;

/* Makes other threads start the calls, while this one does something else until `sluice_end_replay`. Returns 0 if there
   are no other threads or another such replay has not ended. */
__attribute__((visibility("default"))) int sluice_begin_replay(const captured_call *calls, int64_t num_calls) {
  const int num_others = sluice_num_threads() - 1;
  if (num_others <= 0 || !sluice_take_team()) return 0;
  begun.replay = (replay){calls, num_calls, -1, 0};
  init_region(&begun.region, lead_replay, &begun.replay, 0);
  sluice_begin_team(join, &begun.region, num_others);
  return 1;
}

/* Helps until all calls of the started replay are made; returns as `sluice_replay` does. */
__attribute__((visibility("default"))) int64_t sluice_end_replay(void) {
  join(&begun.region);
  const int64_t failed = begun.replay.failed;
  sluice_end_team();
  return failed;
}
