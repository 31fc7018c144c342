/* The parts that exist once for all instruction sets: threads, and the choice of instruction set. */
#define _GNU_SOURCE
#include "parallel.h"

#include <stdlib.h>

int sluice_prefetches_far = 0;

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Linux gives the tile registers to a process that asks for them. */
static int has_tiles(void) {
  enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18, AMX_BF16 = 1 << 22, AMX_TILE = 1 << 24, AMX_INT8 = 1 << 25 };
  unsigned a, b, c, d;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & AMX_BF16) || !(d & AMX_TILE) || !(d & AMX_INT8)) return 0;
  return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

/* Zen 4 is family 25. */
static __attribute__((constructor)) void know_processor(void) {
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d) || (a >> 8 & 15) != 15) return;
  sluice_prefetches_far = (a >> 20 & 255) + 15 == 25;
}
#else
static int has_tiles(void) { return 0; }
#endif

parallel_region_fn sluice_parallel_region = 0;
static int (*most_threads)(void) = 0;

/* `region` is GOMP_parallel of the OpenMP library that torch uses: its threads are used, and no others are started.
   `threads`, omp_get_max_threads of the same library, returns their number. Both are null without such a library. */
__attribute__((visibility("default"))) void sluice_set_parallel_region(parallel_region_fn region, int (*threads)(void)) {
  sluice_parallel_region = region;
  most_threads = threads;
}

int sluice_num_threads(void) { return most_threads ? most_threads() : 1; }

void *kept_room(size_t size) {
  static _Thread_local void *room = 0;
  static _Thread_local size_t room_size = 0;
  if (size > room_size) {
    free(room);
    room = malloc(size);
    room_size = room ? size : 0;
  }
  return room;
}

/* Returns whether this processor and its operating system can run code compiled for `isa`: 3 amx, 2 avx512,
   1 avx2, 0 portable. */
__attribute__((visibility("default"))) int sluice_supports(int isa) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (isa == 3) return sluice_supports(2) && has_tiles();
  if (isa == 2)
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni") &&
           __builtin_cpu_supports("fma");
  if (isa == 1) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
  return isa == 0;
}
