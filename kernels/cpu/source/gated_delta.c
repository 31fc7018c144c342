/* The gated delta rule, one token after another: see kernels/operations/gated_delta.py.

   With the matrix S before a token, its key k and query q, and the factor g that decays S:
     u = beta (v - g Sᵀk)
     out = g Sᵀq + (k · q) u
     S = g S + k uᵀ
   The last line is computed together with Sᵀk and Sᵀq of the next token, so that a token reads and writes S once; some columns
   of S stay in the first cache meanwhile. Each token has the same operations in the same order wherever rows and chunks begin:
   its bits are those of one token at a time. A chunked form would save a quarter of the multiplications, but not that. */

#ifndef SLUICE_GATED_DELTA
#define SLUICE_GATED_DELTA
enum {
  DELTA_TILE = 16,                          /* tokens of a row that are prepared together */
  DELTA_VECTORS = STATE_LANES == 4 ? 4 : 2, /* of a matrix row, while many tokens are computed */
  DELTA_WIDE_VECTORS = 8,                   /* while one token is computed: long stretches of memory are read faster */
  DELTA_COLUMNS = 32,                       /* the least that an item computes */
  MOST_KEY_SIZE = 256,
  MOST_VALUE_SIZE = 256,
};

/* Columns of a matrix with their place: a slot's rows have all columns of a head. */
typedef struct {
  float *values;
  int64_t row_step, block_step; /* from row to row, and from block to block of DELTA_VECTORS */
} delta_columns;

/* Some tokens of a row as one head sees them. */
typedef struct {
  int64_t num_tokens, key_size, num_columns, slot_size;
  const int32_t *slots;
  delta_columns kept, stored; /* where a state is between tokens, and in slot 0 */
  float decays[DELTA_TILE], betas[DELTA_TILE], products[DELTA_TILE];
  _Alignas(64) float keys[DELTA_TILE * MOST_KEY_SIZE], queries[DELTA_TILE * MOST_KEY_SIZE];
  _Alignas(64) float values[DELTA_TILE * MOST_VALUE_SIZE]; /* then the outputs */
} delta_tile;

/* Returns where the state after a token goes. */
INLINE delta_columns find_columns(const delta_tile *tile, int64_t token) {
  delta_columns place = tile->slots[token] < 0 ? tile->kept : tile->stored;
  if (tile->slots[token] >= 0) place.values += tile->slots[token] * tile->slot_size;
  return place;
}

/* Computes all tokens for the `vectors` from column `column` on, which are in block `block` of the matrix. */
INLINE void advance_columns(delta_tile *tile, const int64_t num_tokens, const int vectors, delta_columns from, int64_t block,
                            int64_t column) {
  const int64_t key_size = tile->key_size;
  const float *key = tile->keys, *query = tile->queries;
  const float *rows = from.values + block * from.block_step;
  state_lanes held[DELTA_WIDE_VECTORS], seen[DELTA_WIDE_VECTORS], update[DELTA_WIDE_VECTORS];
  PRAGMA(GCC unroll 8) for (int v = 0; v < vectors; v++) held[v] = seen[v] = (state_lanes){0.0f};
  for (int64_t d = 0; d < key_size; d++)
    PRAGMA(GCC unroll 8) for (int v = 0; v < vectors; v++) {
      const state_lanes x = LOAD_STATE(rows + d * from.row_step + v * STATE_LANES);
      held[v] = multiply_add(x, key[d], held[v]);
      seen[v] = multiply_add(x, query[d], seen[v]);
    }
  for (int64_t token = 0; token < num_tokens; token++, key += key_size, query += key_size) {
    const float decay = tile->decays[token];
    PRAGMA(GCC unroll 8) for (int v = 0; v < vectors; v++) {
      float *value = tile->values + token * tile->num_columns + column + v * STATE_LANES;
      update[v] = (LOAD_STATE(value) - held[v] * decay) * tile->betas[token];
      *(state_lanes *)value = multiply_add(update[v], tile->products[token], seen[v] * decay);
      held[v] = seen[v] = (state_lanes){0.0f};
    }
    const delta_columns place = find_columns(tile, token);
    float *to = place.values + block * place.block_step;
    const float *next_key = token + 1 < num_tokens ? key + key_size : 0, *next_query = query + key_size;
    for (int64_t d = 0; d < key_size; d++)
      PRAGMA(GCC unroll 8) for (int v = 0; v < vectors; v++) {
        const state_lanes before = LOAD_STATE(rows + d * from.row_step + v * STATE_LANES);
        const state_lanes x = multiply_add(update[v], key[d], before * decay);
        *(state_lanes *)(to + d * place.row_step + v * STATE_LANES) = x;
        if (next_key) {
          held[v] = multiply_add(x, next_key[d], held[v]);
          seen[v] = multiply_add(x, next_query[d], seen[v]);
        }
      }
    from = place;
    rows = to;
  }
}

/* Computes a tile for all its columns; returns where the state after it is. */
static delta_columns advance_tile(delta_tile *tile, delta_columns from) {
  enum { BLOCK_SIZE = DELTA_VECTORS * STATE_LANES, WIDE_SIZE = DELTA_WIDE_VECTORS * STATE_LANES };
  const delta_columns to = find_columns(tile, tile->num_tokens - 1);
  const int is_between_slots = from.row_step == tile->stored.row_step && to.row_step == tile->stored.row_step;
  if (tile->num_tokens == 1 && is_between_slots && tile->num_columns % WIDE_SIZE == 0) {
    for (int64_t column = 0; column < tile->num_columns; column += WIDE_SIZE)
      advance_columns(tile, 1, DELTA_WIDE_VECTORS, from, column / BLOCK_SIZE, column);
    return to;
  }
  for (int64_t block = 0; block * BLOCK_SIZE < tile->num_columns; block++)
    advance_columns(tile, tile->num_tokens, DELTA_VECTORS, from, block, block * BLOCK_SIZE);
  return to;
}
#endif

typedef struct {
  NAME(gated_delta_arguments) of;
  float *kept;
  int64_t num_parts; /* items to a matrix */
} NAME(delta_call);

/* Writes `in` divided by its length, times `factor`. */
INLINE void NAME(load_normalized)(const element *in, float *out, int64_t size, float factor) {
  float squares = 1e-6f;
  SIMD_SUM(squares) for (int64_t i = 0; i < size; i++) squares += WIDEN(in[i]) * WIDEN(in[i]);
  const float scale = factor / sqrtf(squares);
  SIMD for (int64_t i = 0; i < size; i++) out[i] = WIDEN(in[i]) * scale;
}

/* Prepares the tokens from `token` on for a head and its columns from `column` on. */
static void NAME(load_tile)(const NAME(gated_delta_arguments) *of, int64_t head, int64_t column, int64_t token, int64_t num_tokens,
                            delta_tile *tile) {
  const int64_t key_size = of->key_size, num_key_heads = of->num_key_heads;
  const int64_t key_head = of->has_tiled_heads ? head % num_key_heads : head * num_key_heads / of->num_heads;
  const int64_t ahead = DELTA_TILE * of->stride; /* the tokens of the next tile */
  const float shrink = 1.0f / sqrtf((float)key_size);
  for (int64_t i = 0; i < num_tokens; i++) {
    const element *query = of->qkv + (token + i) * of->stride + key_head * key_size;
    const element *key = query + num_key_heads * key_size;
    const element *value = of->qkv + (token + i) * of->stride + 2 * num_key_heads * key_size + head * of->value_size + column;
    for (int64_t d = 0; d < key_size; d += 64 / (int64_t)sizeof(element)) {
      __builtin_prefetch(query + d + ahead);
      __builtin_prefetch(key + d + ahead);
    }
    for (int64_t v = 0; v < tile->num_columns; v += 64 / (int64_t)sizeof(element)) __builtin_prefetch(value + v + ahead);
    float *keys = tile->keys + i * key_size, *queries = tile->queries + i * key_size, product = 0.0f;
    NAME(load_normalized)(query, queries, key_size, shrink);
    NAME(load_normalized)(key, keys, key_size, 1.0f);
    SIMD_SUM(product) for (int64_t d = 0; d < key_size; d++) product += keys[d] * queries[d];
    tile->products[i] = product;
    float *values = tile->values + i * tile->num_columns;
    SIMD for (int64_t v = 0; v < tile->num_columns; v++) values[v] = WIDEN(value[v]);
    const element *gates = of->gates + (token + i) * of->gates_stride + head;
    tile->betas[i] = times_sigmoid(1.0f, -LOG2_E * WIDEN(gates[0]));
    tile->decays[i] = power_of_2(LOG2_E * of->rates[head] * softplus(WIDEN(gates[of->num_heads]) + of->biases[head]));
  }
  tile->num_tokens = num_tokens;
  tile->slots = of->rows.slots + token;
}

/* Computes all rows for some columns of one head's matrix. */
static void NAME(delta_item)(const void *data, int64_t item) {
  const NAME(delta_call) *call = data;
  const NAME(gated_delta_arguments) *of = &call->of;
  const int64_t head = item / call->num_parts, num_columns = of->value_size / call->num_parts;
  const int64_t column = item % call->num_parts * num_columns, key_size = of->key_size, value_size = of->value_size;
  const int64_t slot_size = of->num_heads * key_size * value_size, block_size = DELTA_VECTORS * STATE_LANES;
  const int64_t num_rows = of->rows.num_decode_rows + of->rows.num_prefill_rows;
  delta_tile tile;
  tile.key_size = key_size;
  tile.num_columns = num_columns;
  tile.slot_size = slot_size;
  tile.stored = (delta_columns){of->matrices + head * key_size * value_size + column, value_size, block_size};
  tile.kept = (delta_columns){call->kept + item * key_size * num_columns, block_size, key_size * block_size};
  for (int64_t row = 0, token = 0; row < num_rows; row++) {
    const state_row now = find_state_row(&of->rows, row, token);
    delta_columns state = now.source < 0 ? tile.kept : tile.stored;
    if (now.source >= 0) state.values += now.source * slot_size;
    else memset(state.values, 0, (size_t)(key_size * num_columns) * sizeof(float));
    while (token < now.end) {
      const int64_t num_tokens = now.end - token < DELTA_TILE ? now.end - token : DELTA_TILE;
      NAME(load_tile)(of, head, column, token, num_tokens, &tile);
      state = advance_tile(&tile, state);
      for (int64_t i = 0; i < num_tokens; i++, token++) {
        element *out = of->out + (token * of->num_heads + head) * value_size + column;
        const float *values = tile.values + i * num_columns;
        SIMD for (int64_t v = 0; v < num_columns; v++) out[v] = NARROW(values[v]);
      }
    }
  }
}

/* Returns 0, or -1 without memory. */
PUBLIC int NAME(gated_delta)(const NAME(gated_delta_arguments) *of) {
  const int64_t num_heads = of->num_heads, slot_size = num_heads * of->key_size * of->value_size;
  char *room = kept_room((size_t)slot_size * sizeof(float) + 64);
  if (!room) return -1;
  NAME(delta_call) call = {*of, (float *)(void *)(room + (64 - (uintptr_t)room % 64) % 64), 1};
  while (num_heads * call.num_parts < 4 * sluice_num_threads() && of->value_size % (2 * call.num_parts * DELTA_COLUMNS) == 0)
    call.num_parts *= 2;
  run_items(num_heads * call.num_parts, count_row_tokens(&of->rows) * slot_size, NAME(delta_item), &call);
  return 0;
}
