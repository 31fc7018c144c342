/* All operations for one instruction set. Compiled once per instruction set, ISA, which ends every name. */
#include "numbers.h"
#include "float16.h"
#include "parallel.h"
#include "captured_call.h"

#include <stdlib.h>

#define JOIN3_(a, b, c) a##_##b##_##c
#define JOIN3(a, b, c) JOIN3_(a, b, c)
#define PUBLIC __attribute__((visibility("default")))

/* The files below are templates: `element` is the number format of tensors, NAME(x) the name of x for this format
   and instruction set, WIDEN and NARROW convert to float and back. */
#define NAME(x) JOIN3(x, FORMAT, ISA)

/* Defines an operation whose call `of` is `num_items` independent items, run by `run_item`: see run_items in parallel.h. */
#define ITEM_OPERATION(operation, arguments, num_items, work, run_item) \
  PUBLIC int NAME(operation)(const NAME(arguments) *of) { \
    run_items(num_items, work, NAME(run_item), of); \
    return 0; \
  }

#define FORMAT float32
#define element float
#define WIDEN widen_float32
#define LOAD load_float32
#define NARROW narrow_float32
#define IS_BFLOAT16 0
#include "operations.h"
#undef FORMAT
#undef element
#undef WIDEN
#undef LOAD
#undef NARROW
#undef IS_BFLOAT16

#define FORMAT bfloat16
#define element uint16_t
#define WIDEN widen_bfloat16
#define LOAD load_bfloat16
#define NARROW narrow_bfloat16
#define IS_BFLOAT16 1
#include "operations.h"
