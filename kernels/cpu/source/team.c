/* The team's threads (team.h): started on first use, and asleep after a while without work. */
#define _GNU_SOURCE
#include "team.h"

#include "wait.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

static void sleep_while(_Atomic uint32_t *word, uint32_t value) {
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, 0, 0, 0);
}

static void wake_all(_Atomic uint32_t *word) { syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, 0, 0, 0); }

static struct {
  _Alignas(64) _Atomic uint32_t round; /* odd while there is work */
  _Atomic int num_asleep;
  _Alignas(64) _Atomic int num_inside;
  _Atomic int is_taken;
  int num_started, num_wanted;
  team_fn work;
  void *data;
} team;

static void wait_for_round(uint32_t seen) {
  uint32_t round;
  for (int num_waits = 0; (round = atomic_load(&team.round)) == seen || !(round & 1);) {
    if (num_waits < SPINS) {
      wait_a_little(&num_waits);
    } else {
      atomic_fetch_add(&team.num_asleep, 1);
      sleep_while(&team.round, round);
      atomic_fetch_sub(&team.num_asleep, 1);
    }
  }
}

static void *serve(void *data) {
  const int number = (int)(intptr_t)data;
  for (uint32_t seen = 0;;) {
    wait_for_round(seen);
    atomic_fetch_add(&team.num_inside, 1);
    /* Only now the round cannot end before this thread has left it. */
    const uint32_t round = atomic_load(&team.round);
    if (round & 1) {
      seen = round;
      if (number < team.num_wanted) team.work(team.data);
    }
    atomic_fetch_sub(&team.num_inside, 1);
  }
  return 0;
}

static void start_threads(int num_threads) {
  pthread_attr_t detached;
  if (team.num_started >= num_threads || pthread_attr_init(&detached)) return;
  pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
  for (pthread_t thread; team.num_started < num_threads; team.num_started++)
    if (pthread_create(&thread, &detached, serve, (void *)(intptr_t)team.num_started)) break;
  pthread_attr_destroy(&detached);
}

int sluice_take_team(void) { return !atomic_exchange(&team.is_taken, 1); }

void sluice_begin_team(team_fn work, void *data, int num_threads) {
  start_threads(num_threads);
  team.work = work, team.data = data, team.num_wanted = num_threads;
  atomic_fetch_add(&team.round, 1);
  if (atomic_load(&team.num_asleep)) wake_all(&team.round);
}

void sluice_end_team(void) {
  atomic_fetch_add(&team.round, 1);
  for (int num_waits = 0; atomic_load(&team.num_inside);) wait_a_little(&num_waits);
  atomic_store(&team.is_taken, 0);
}
