/* A call of an operation as data. */
#ifndef SLUICE_CAPTURED_CALL_H
#define SLUICE_CAPTURED_CALL_H

#include "attention_arguments.h"

typedef union {
  void *pointer;
  int64_t integer;
  float number;
} call_argument;

/* The most words that any operation takes: those of attention. */
enum { MAX_ARGUMENTS = sizeof(attention_arguments) / sizeof(call_argument) };

/* Returns 0, or -1 without memory. */
typedef int (*captured_fn)(const call_argument *arguments);

typedef struct {
  captured_fn run;
  call_argument arguments[MAX_ARGUMENTS];
} captured_call;

#endif
