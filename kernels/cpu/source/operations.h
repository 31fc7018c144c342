/* Each operation, in the number format that kernels.c has chosen. */
#include "embed.c"
#include "layer_norm.c"
#include "rms_norm.c"
#include "qk_norm.c"
#include "silu_mul.c"
#include "gelu.c"
/* The KV cache is in the number format of the tensors. */
#define kv_element element
#define WIDEN_KV WIDEN
#include "cache_operations.h"
#undef kv_element
#undef WIDEN_KV
#include "pack_linear.c"
#include "packed_linear.c"
#include "quantized_dot.h"
#include "quantized_codes.h"
#include "quantized_linear.c"
#include "quantize.c"
#include "greedy.c"
#include "sample.c"
#include "apply_bitmask.c"
#include "captured_calls.c"
