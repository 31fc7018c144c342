/* The arguments of the attention kernels. Each field is one word, so that a captured call holds the structure in place of its
   arguments. ../attention_arguments.py mirrors it field by field. */
#ifndef SLUICE_ATTENTION_ARGUMENTS_H
#define SLUICE_ATTENTION_ARGUMENTS_H

#include <stdint.h>

typedef struct {
  const void *query; /* [tokens, num_heads * queries_a_head, head_dim], tokens `query_stride` elements apart */
  int64_t query_stride;
  const void *keys, *values; /* [slots, num_heads, head_dim]: elements, codes of int8, or float16 */
  const uint16_t *key_scales, *value_scales; /* bfloat16 [slots, num_heads]; null without codes */
  const int32_t *page_tables;                /* [rows, pages], rows `table_stride` apart */
  int64_t table_stride;                      /* for encoder_attention: elements between tokens of keys, and of values */
  const int32_t *num_keys;                  /* [rows], for decode */
  const int32_t *query_lens, *context_lens; /* [rows], for prefill */
  void *out;                                /* like query, contiguous */
  int64_t num_rows, num_heads, queries_a_head, head_dim, page_size; /* `num_heads`: key/value heads */
  double scale;
  int64_t window;     /* last keys that a query attends to: at least 1; 2^31 - 1 for all */
  double softcap;     /* scores become softcap * tanh(score / softcap); 0 for none */
  const float *sinks; /* [num_heads * queries_a_head]; null for none */
  const float *biases; /* [num_heads, 2 * bias_reach + 1], by distance; null for none. Only for encoder_attention. */
  int64_t bias_reach;
  int64_t is_float16; /* keys and values are, and the elements float32 */
} attention_arguments;

#endif
