/* How a thread waits for others, which may need its core. */
#ifndef SLUICE_WAIT_H
#define SLUICE_WAIT_H

#include <sched.h>

/* About 0.1 ms. */
enum { SPINS = 4096 };

/* Waits a little; after a while it yields the core to other threads. */
static inline void wait_a_little(int *num_waits) {
  if (++*num_waits > SPINS) sched_yield();
#if defined(__x86_64__)
  else __builtin_ia32_pause();
#endif
}

#endif
