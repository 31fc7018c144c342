/* Root-mean-square normalization of query and key heads in place: kernels/qk_norm.py says what it does. */

typedef struct {
  element *heads;
  const element *query_weight, *key_weight;
  int64_t num_heads, num_kv_heads, head_dim;
  float eps;
} NAME(qk_norm_call);

static void NAME(qk_norm_token)(const void *data, int64_t token) {
  const NAME(qk_norm_call) *call = data;
  const int64_t head_dim = call->head_dim, num_normed = call->num_heads + call->num_kv_heads;
  element *heads = call->heads + token * (num_normed + call->num_kv_heads) * head_dim;
  for (int64_t head = 0; head < num_normed; head++) {
    element *x = heads + head * head_dim;
    const element *weight = head < call->num_heads ? call->query_weight : call->key_weight;
    NAME(rms_norm_call) one = {x, 0, weight, x, head_dim, call->eps};
    NAME(rms_norm_token)(&one, 0);
  }
}

/* heads: [num_tokens, num_heads + 2 * num_kv_heads, head_dim]: query, key and value heads. */
PUBLIC void NAME(qk_norm)(element *heads, const element *query_weight, const element *key_weight, int64_t num_tokens,
                          int64_t num_heads, int64_t num_kv_heads, int64_t head_dim, float eps) {
  NAME(qk_norm_call) call = {heads, query_weight, key_weight, num_heads, num_kv_heads, head_dim, eps};
  run_items(num_tokens, num_tokens * (num_heads + 2 * num_kv_heads) * head_dim, NAME(qk_norm_token), &call);
}
