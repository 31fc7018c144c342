/* A call of an operation as data. */
#ifndef SLUICE_CAPTURED_CALL_H
#define SLUICE_CAPTURED_CALL_H

#include <stdint.h>

#include "arguments.h" /* written by ../headers.py */

/* Takes the structure of the operation's arguments. Returns 0, or -1 without memory. */
typedef int (*captured_fn)(const void *arguments);

typedef struct {
  captured_fn run;
  uint64_t arguments[MAX_WORDS];
} captured_call;

#endif
