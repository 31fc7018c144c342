/* Attention of whole rows in both directions: see kernels/operations/encoder_attention.py.

   Items, packing, products and softmax are those of paged_prefill.c, but K and V are not in pages: those of a row's tokens are
   `table_stride` elements apart. Blocks of keys begin at multiples of BLOCK, so a row's result depends on nothing else. */

/* Adds to the scores of a group's queries, the first one at `position`, what their distances to the keys from `first` on add.
   `biases`: [2 * reach + 1], of one head. */
static void NAME(add_biases)(const float *biases, int64_t reach, float scale, int64_t position, int64_t first, int num_queries,
                             int num_keys, float *scores) {
  float line[BLOCK + QUERY_STRIDE]; /* by the distance from key to query, so that those of one key are side by side */
  for (int i = 0; i < num_keys + num_queries - 1; i++) {
    const int64_t distance = first + num_keys - 1 - position - i;
    line[i] = biases[(distance < -reach ? -reach : distance > reach ? reach : distance) + reach] / scale;
  }
  for (int j = 0; j < num_keys; j++)
    SIMD for (int q = 0; q < num_queries; q++) scores[j * QUERY_STRIDE + q] += line[num_keys - 1 - j + q];
}

/* Attends with a group's `num_queries` queries to a block of `num_keys` keys, the row's from `first` on. With a window, a
   query sees 2 * window - 1 keys. */
INLINE void NAME(encode_block)(const NAME(paged_decode_arguments) *of, float scale, const float *biases, int group, int num_queries,
                               int64_t position, int64_t first, int num_keys, int padded_dim, NAME(prefill_scratch) *s) {
  const int vectors = (num_queries + 15) / 16, end = (num_keys + ENDS_STEP - 1) / ENDS_STEP * ENDS_STEP;
  const int64_t seen = 2 * of->window - 1;
  NAME(tile_product)
  (s->keys, padded_dim, STEP, s->query + column_of(group, padded_dim / STEP), s->scores, end, padded_dim / STEP, vectors, SCORES,
   0);
  if (biases)
    NAME(add_biases)
    (biases, of->bias_reach, (float)of->scale, position + group, first, num_queries, num_keys, s->scores);
  for (int j = num_keys; j < end; j++)
    for (int q = 0; q < 16 * vectors; q++) s->scores[j * QUERY_STRIDE + q] = LOWEST;
  for (int v = 0; v < vectors; v++) {
    const int mine = group + 16 * v;
    const int64_t most = s->last_seen[mine + 15] - first, least = s->last_seen[mine] - first - (num_keys - 1);
    const int sees_all = of->window == INT32_MAX || (most < seen && least >= 0);
    if (sees_all) NAME(soften)(scale, mine, end, first, 0, 0, s);
    else NAME(soften)(scale, mine, end, first, 1, 0, s);
  }
  const int ends[] = {0, end, end, end, end};
  NAME(add_block)(group, vectors, ends, padded_dim, VALUES, s);
}

static void NAME(encoder_attention_item)(const void *data, int64_t item) {
  const NAME(paged_prefill_call) *call = data;
  const NAME(paged_decode_arguments) *of = &call->of;
  const int64_t num_heads = of->num_heads, head_dim = of->head_dim, queries = of->queries_a_head;
  const int64_t num_tiles = call->first_tile[of->num_rows], head = item / num_tiles, tile = item % num_tiles;
  const int64_t row = find_row(call->first_tile, of->num_rows, tile), row_keys = of->query_lens[row];
  const int64_t start = (tile - call->first_tile[row]) * call->tokens_a_tile, rest = row_keys - start;
  const int num_tokens = (int)(rest < call->tokens_a_tile ? rest : call->tokens_a_tile);
  const int num_queries = num_tokens * (int)queries, padded_dim = PADDED_DIM((int)head_dim);
  const int64_t token = call->first_token[row] + start, shift = of->window == INT32_MAX ? 0 : of->window - 1;
  const float scale = (float)of->scale * LOG2_E;
  const element *query = (const element *)of->query + token * of->query_stride + head * queries * head_dim;
  NAME(prefill_scratch) scratch, *s = &scratch;
  s->value_dim = padded_dim;
  memset(s->sums, 0, sizeof(float) * (size_t)(padded_dim * QUERY_STRIDE * NUM_GROUPS(num_queries)));
  for (int q = 0; q < MAX_QUERIES; q++) {
    /* The padding of the last vector has the position of the last query. */
    s->last_seen[q] = (int32_t)(start + (q < num_queries ? q / queries : num_tokens - 1) + shift);
    s->num_seen[q] = (uint32_t)(2 * of->window - 1);
    s->level[q] = LOWEST;
    s->total[q] = 0.0f;
  }
  NAME(pack_queries)(query, of->query_stride, (int)queries, num_queries, (int)head_dim, s);
#if ON_TILES
  tile_settings before;
  use_tiles(&before);
#endif
  const int64_t seen_from = shift && start > shift ? start - shift : 0;
  const int64_t last = start + num_tokens + shift, end = shift && last < row_keys ? last : row_keys;
  const float *biases = of->biases ? of->biases + head * (2 * of->bias_reach + 1) : 0;
  for (int64_t first = seen_from / BLOCK * BLOCK; first < end; first += BLOCK) {
    const int num_keys = end - first < BLOCK ? (int)(end - first) : BLOCK;
    for (int j = 0; j < num_keys; j++)
      s->offsets[j] = (call->first_token[row] + first + j) * of->table_stride + head * head_dim;
    NAME(pack_block)(of, num_keys, padded_dim, ELEMENTS, s);
    for (int group = 0; group < num_queries; group += QUERY_STRIDE) {
      const int left = num_queries - group;
      NAME(encode_block)
      (of, scale, biases, group, left < QUERY_STRIDE ? left : QUERY_STRIDE, start, first, num_keys, padded_dim, s);
    }
  }
#if ON_TILES
  leave_tiles(&before);
#endif
  element *out = (element *)of->out + (token * num_heads + head) * queries * head_dim;
  NAME(unpack_sums)(s, num_queries, (int)queries, (int)head_dim, out, num_heads * queries * head_dim);
}

/* The query holds the tokens of all rows, one row after another. Returns 0, or -1 without memory. */
PUBLIC int NAME(encoder_attention)(const NAME(paged_decode_arguments) *of) {
  return NAME(run_tiles)(of, NAME(encoder_attention_item));
}
