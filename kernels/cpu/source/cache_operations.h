/* The operations that write or read the KV cache, in the number formats that operations.h has chosen. */
#include "paged_kv.h"
#include "store_kv.c"
#include "decode_splits.h"
#include "paged_decode.c"
#include "tile_product.h"
#include "paged_prefill.c"
