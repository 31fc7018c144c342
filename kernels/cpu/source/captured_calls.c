/* For each captured operation of kernel_list.h, a function `call_NAME` that takes the arguments as data. For the other
   operations, the compiler only checks their arguments against the list. */

#define P(index) arguments[index].pointer
#define I(index) arguments[index].integer
#define F(index) arguments[index].number
#define ATTENTION (const attention_arguments *)(const void *)arguments
#define VOID(call) (call, 0)
#define STATUS(call) call
#define CAPTURED(returns, name, ...) \
  PUBLIC int NAME(call_##name)(const call_argument *arguments) { return returns(NAME(name)(__VA_ARGS__)); }
#define EAGER(returns, name, ...) \
  INLINE int NAME(check_##name)(const call_argument *arguments) { return returns(NAME(name)(__VA_ARGS__)); }

#include "kernel_list.h"

#undef P
#undef I
#undef F
#undef ATTENTION
#undef VOID
#undef STATUS
#undef CAPTURED
#undef EAGER
