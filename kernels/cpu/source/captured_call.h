/* A call of an operation as data. */
#ifndef SLUICE_CAPTURED_CALL_H
#define SLUICE_CAPTURED_CALL_H

#include <stdint.h>

enum { MAX_ARGUMENTS = 17 };

typedef union {
  void *pointer;
  int64_t integer;
  float number;
} call_argument;

/* Returns 0, or -1 without memory. */
typedef int (*captured_fn)(const call_argument *arguments);

typedef struct {
  captured_fn run;
  call_argument arguments[MAX_ARGUMENTS];
} captured_call;

#endif
