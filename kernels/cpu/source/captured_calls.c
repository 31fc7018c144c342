/* Each captured operation of kernel_list.h as a function of arguments that are data: `call_NAME`. For the others, the
   compiler checks that their arguments are as the list says. */

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
