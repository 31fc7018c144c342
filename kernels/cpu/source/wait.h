/* How a thread waits for others, which may need its core. */
#ifndef SLUICE_WAIT_H
#define SLUICE_WAIT_H

#include <sched.h>

/* Some 0.1 ms. */
enum { SPINS = 4096 };

/* Waits a little; soon, other programs' threads and those that this one waits for may have the core. */
static inline void wait_a_little(int *num_waits) {
  if (++*num_waits > SPINS) sched_yield();
#if defined(__x86_64__)
  else __builtin_ia32_pause();
#endif
}

#endif
