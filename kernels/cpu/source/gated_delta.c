/* The gated delta rule: see kernels/operations/gated_delta.py.

   Up to DELTA_CHUNK tokens of a row are computed together, so that their head's matrix is read twice and written once for
   all of them. With the matrix S before them, g(j, c) the product of what is kept from after token j to token c, and
   g(c) from before the first token on:
     u_c = beta_c (v_c - g(c) Sᵀk_c - sum over j < c of g(j, c) (k_j · k_c) u_j)
     out_c = g(c) Sᵀq_c + sum over j <= c of g(j, c) (k_j · q_c) u_j
     S = g(last) S + sum over j of g(j, last) k_j u_jᵀ
   This is the chunked form of Yang, Kautz and Hatamizadeh 2024 with chunks too short to need a product of matrices. */

#ifndef SLUICE_GATED_DELTA
#define SLUICE_GATED_DELTA
enum {
  DELTA_CHUNK = 4,
  DELTA_TILE = 16, /* tokens of a row that are prepared together */
  DELTA_VECTORS = STATE_LANES == 16 ? 2 : 1, /* of a matrix row while many tokens are computed: the registers hold two sums
                                                a token for each */
  DELTA_WIDE_VECTORS = 8,                    /* while one token is computed: long stretches of memory are read faster */
  DELTA_COLUMNS = 32,                        /* the least that an item computes */
  MOST_KEY_SIZE = 256,
  MOST_VALUE_SIZE = 256,
};

/* Columns of a matrix with their place: a slot's rows have all columns of a head. */
typedef struct {
  float *values;
  int64_t row_step, block_step; /* from row to row, and from block to block of DELTA_VECTORS */
} delta_columns;

typedef struct {
  int64_t first, size, slot; /* the slot that receives the state after its last token, or -1 */
  float kept[DELTA_CHUNK];   /* g(c) */
  float rest[DELTA_CHUNK];   /* g(j, last) */
  float by_keys[DELTA_CHUNK][DELTA_CHUNK], by_queries[DELTA_CHUNK][DELTA_CHUNK]; /* g(j, c) times a product, as [j][c] */
} delta_chunk;

/* Some tokens of a row as one head sees them. */
typedef struct {
  int64_t key_size, key_stride, num_columns, num_chunks; /* keys and queries end with zeros */
  float kept[DELTA_TILE], betas[DELTA_TILE];
  delta_chunk chunks[DELTA_TILE];
  _Alignas(64) float keys[DELTA_TILE * MOST_KEY_SIZE], queries[DELTA_TILE * MOST_KEY_SIZE];
  _Alignas(64) float values[DELTA_TILE * MOST_VALUE_SIZE]; /* then the outputs */
} delta_tile;

/* Sets what a chunk needs to know of its `size` tokens. */
INLINE void relate_tokens(const delta_tile *tile, delta_chunk *chunk, const int size) {
  const int64_t stride = tile->key_stride;
  const float *keys = tile->keys + chunk->first * stride, *queries = tile->queries + chunk->first * stride;
  const float *kept = tile->kept + chunk->first;
  state_lanes by_keys[DELTA_CHUNK][DELTA_CHUNK] = {{{0.0f}}}, by_queries[DELTA_CHUNK][DELTA_CHUNK] = {{{0.0f}}};
  for (int64_t d = 0; d < stride; d += STATE_LANES)
    PRAGMA(GCC unroll 4) for (int c = 0; c < size; c++) {
      const state_lanes later = LOAD_STATE(keys + c * stride + d), query = LOAD_STATE(queries + c * stride + d);
      PRAGMA(GCC unroll 4) for (int j = 0; j <= c; j++) {
        const state_lanes key = j < c ? LOAD_STATE(keys + j * stride + d) : later;
        if (j < c) by_keys[j][c] += key * later;
        by_queries[j][c] += key * query;
      }
    }
  for (int j = 0; j < size; j++) {
    lanes sums[2 * DELTA_CHUNK] = {{0.0f}};
    PRAGMA(GCC unroll 4) for (int c = 0; c < size; c++) {
      sums[c] = as_lanes(by_keys[j][c]);
      sums[DELTA_CHUNK + c] = as_lanes(by_queries[j][c]);
    }
    sum_four(sums, chunk->by_keys[j]);
    sum_four(sums + DELTA_CHUNK, chunk->by_queries[j]);
    float factor = 1.0f;
    for (int c = j; c < size; c++) {
      if (c > j) factor *= kept[c];
      chunk->by_keys[j][c] *= factor;
      chunk->by_queries[j][c] *= factor;
    }
    chunk->kept[j] = j ? chunk->kept[j - 1] * kept[j] : kept[j];
    chunk->rest[j] = factor;
  }
}

/* Cuts the tile into chunks: each ends with the first token whose state is stored. */
static void plan_chunks(delta_tile *tile, const int32_t *slots, int64_t num_tokens) {
  tile->num_chunks = 0;
  for (int64_t first = 0; first < num_tokens;) {
    delta_chunk *chunk = tile->chunks + tile->num_chunks++;
    chunk->first = first;
    chunk->size = 0;
    do chunk->slot = slots[first + chunk->size++];
    while (chunk->slot < 0 && chunk->size < DELTA_CHUNK && first + chunk->size < num_tokens);
    first += chunk->size;
    if (chunk->size == 4) relate_tokens(tile, chunk, 4);
    else if (chunk->size == 3) relate_tokens(tile, chunk, 3);
    else if (chunk->size == 2) relate_tokens(tile, chunk, 2);
    else relate_tokens(tile, chunk, 1);
  }
}

/* Computes a chunk for some columns, from the rows of a matrix `from` to the rows `to`, which may be the same. */
INLINE void advance_columns(const delta_tile *tile, const delta_chunk *chunk, const int size, const int vectors,
                            const float *from, int64_t from_step, float *to, int64_t to_step, float *values) {
  const int64_t key_size = tile->key_size, stride = tile->key_stride, num_columns = tile->num_columns;
  const float *keys = tile->keys + chunk->first * stride, *queries = tile->queries + chunk->first * stride;
  const float *betas = tile->betas + chunk->first;
  state_lanes held[DELTA_CHUNK][DELTA_WIDE_VECTORS], seen[DELTA_CHUNK][DELTA_WIDE_VECTORS];
  PRAGMA(GCC unroll 4) for (int c = 0; c < size; c++)
    PRAGMA(GCC unroll 8) for (int v = 0; v < vectors; v++) held[c][v] = seen[c][v] = (state_lanes){0.0f};
  for (int64_t d = 0; d < key_size; d++) {
    const float *row = from + d * from_step;
    state_lanes before[DELTA_WIDE_VECTORS];
    PRAGMA(GCC unroll 8) for (int v = 0; v < vectors; v++) before[v] = LOAD_STATE(row + v * STATE_LANES);
    PRAGMA(GCC unroll 4) for (int c = 0; c < size; c++) {
      const float key = keys[c * stride + d], query = queries[c * stride + d];
      PRAGMA(GCC unroll 8) for (int v = 0; v < vectors; v++) {
        held[c][v] += before[v] * key;
        seen[c][v] += before[v] * query;
      }
    }
  }
  PRAGMA(GCC unroll 4) for (int c = 0; c < size; c++)
    PRAGMA(GCC unroll 8) for (int v = 0; v < vectors; v++) {
      float *value = values + c * num_columns + v * STATE_LANES;
      state_lanes update = LOAD_STATE(value) - held[c][v] * chunk->kept[c], out = seen[c][v] * chunk->kept[c];
      PRAGMA(GCC unroll 4) for (int j = 0; j < c; j++) {
        update -= held[j][v] * chunk->by_keys[j][c];
        out += held[j][v] * chunk->by_queries[j][c];
      }
      held[c][v] = update * betas[c]; /* u_c */
      *(state_lanes *)value = out + held[c][v] * chunk->by_queries[c][c];
    }
  PRAGMA(GCC unroll 4) for (int c = 0; c < size; c++)
    PRAGMA(GCC unroll 8) for (int v = 0; v < vectors; v++) held[c][v] *= chunk->rest[c];
  const float kept = chunk->kept[size - 1];
  for (int64_t d = 0; d < key_size; d++) {
    state_lanes after[DELTA_WIDE_VECTORS];
    PRAGMA(GCC unroll 8) for (int v = 0; v < vectors; v++) after[v] = LOAD_STATE(from + d * from_step + v * STATE_LANES) * kept;
    PRAGMA(GCC unroll 4) for (int c = 0; c < size; c++) {
      const float key = keys[c * stride + d];
      PRAGMA(GCC unroll 8) for (int v = 0; v < vectors; v++) after[v] += held[c][v] * key;
    }
    PRAGMA(GCC unroll 8) for (int v = 0; v < vectors; v++) *(state_lanes *)(to + d * to_step + v * STATE_LANES) = after[v];
  }
}

static void advance_chunk(const delta_tile *tile, const delta_chunk *chunk, const float *from, int64_t from_step, float *to,
                          int64_t to_step, float *values) {
  switch (chunk->size) {
    case 4: return advance_columns(tile, chunk, 4, DELTA_VECTORS, from, from_step, to, to_step, values);
    case 3: return advance_columns(tile, chunk, 3, DELTA_VECTORS, from, from_step, to, to_step, values);
    case 2: return advance_columns(tile, chunk, 2, DELTA_VECTORS, from, from_step, to, to_step, values);
    default: return advance_columns(tile, chunk, 1, DELTA_VECTORS, from, from_step, to, to_step, values);
  }
}

/* Computes a tile for all its columns; returns where the state after it is. */
static delta_columns advance_tile(delta_tile *tile, delta_columns from, delta_columns kept, delta_columns slots, int64_t slot_size) {
  enum { BLOCK_SIZE = DELTA_VECTORS * STATE_LANES, WIDE_SIZE = DELTA_WIDE_VECTORS * STATE_LANES };
  const delta_chunk *only = tile->chunks;
  delta_columns to = from;
  const int is_between_slots = only->size == 1 && tile->num_chunks == 1 && only->slot >= 0 && from.row_step == slots.row_step;
  if (is_between_slots && tile->num_columns % WIDE_SIZE == 0) {
    to = slots;
    to.values += only->slot * slot_size;
    for (int64_t first = 0; first < tile->num_columns; first += WIDE_SIZE)
      advance_columns(tile, only, 1, DELTA_WIDE_VECTORS, from.values + first, from.row_step, to.values + first, to.row_step,
                      tile->values + first);
    return to;
  }
  for (int64_t block = 0; block * BLOCK_SIZE < tile->num_columns; block++) {
    delta_columns before = from;
    for (int64_t i = 0; i < tile->num_chunks; i++, before = to) {
      const delta_chunk *chunk = tile->chunks + i;
      to = chunk->slot < 0 ? kept : slots;
      if (chunk->slot >= 0) to.values += chunk->slot * slot_size;
      advance_chunk(tile, chunk, before.values + block * before.block_step, before.row_step, to.values + block * to.block_step,
                    to.row_step, tile->values + chunk->first * tile->num_columns + block * BLOCK_SIZE);
    }
  }
  return to;
}
#endif

typedef struct {
  const element *qkv, *gates;
  const float *rates, *biases;
  float *matrices, *kept;
  element *out;
  state_rows rows;
  int64_t stride, gates_stride, num_heads, num_key_heads, key_size, value_size;
  int64_t has_tiled_heads, num_parts; /* items to a matrix */
} NAME(delta_call);

/* Writes `in` divided by its length, times `factor`, and zeros up to `stride`. */
INLINE void NAME(load_normalized)(const element *in, float *out, int64_t size, int64_t stride, float factor) {
  float squares = 1e-6f;
  SIMD_SUM(squares) for (int64_t i = 0; i < size; i++) squares += WIDEN(in[i]) * WIDEN(in[i]);
  const float scale = factor / sqrtf(squares);
  SIMD for (int64_t i = 0; i < size; i++) out[i] = WIDEN(in[i]) * scale;
  for (int64_t i = size; i < stride; i++) out[i] = 0.0f;
}

/* Prepares the tokens from `token` on for a head and its columns from `column` on. */
static void NAME(load_tile)(const NAME(delta_call) *call, int64_t head, int64_t column, int64_t token, int64_t num_tokens,
                            delta_tile *tile) {
  const int64_t key_size = call->key_size, num_key_heads = call->num_key_heads;
  const int64_t key_head = call->has_tiled_heads ? head % num_key_heads : head * num_key_heads / call->num_heads;
  const int64_t ahead = DELTA_TILE * call->stride; /* the tokens of the next tile */
  const float shrink = 1.0f / sqrtf((float)key_size);
  for (int64_t i = 0; i < num_tokens; i++) {
    const element *query = call->qkv + (token + i) * call->stride + key_head * key_size;
    const element *key = query + num_key_heads * key_size;
    const element *value = call->qkv + (token + i) * call->stride + 2 * num_key_heads * key_size + head * call->value_size + column;
    for (int64_t d = 0; d < key_size; d += 64 / (int64_t)sizeof(element)) {
      __builtin_prefetch(query + d + ahead);
      __builtin_prefetch(key + d + ahead);
    }
    for (int64_t v = 0; v < tile->num_columns; v += 64 / (int64_t)sizeof(element)) __builtin_prefetch(value + v + ahead);
    NAME(load_normalized)(query, tile->queries + i * tile->key_stride, key_size, tile->key_stride, shrink);
    NAME(load_normalized)(key, tile->keys + i * tile->key_stride, key_size, tile->key_stride, 1.0f);
    float *values = tile->values + i * tile->num_columns;
    SIMD for (int64_t v = 0; v < tile->num_columns; v++) values[v] = WIDEN(value[v]);
    const element *gates = call->gates + (token + i) * call->gates_stride + head;
    const float power = -LOG2_E * WIDEN(gates[0]);
    tile->betas[i] = 1.0f / (1.0f + power_of_2(power > 126.0f ? 126.0f : power));
    tile->kept[i] = power_of_2(LOG2_E * call->rates[head] * softplus(WIDEN(gates[call->num_heads]) + call->biases[head]));
  }
  plan_chunks(tile, call->rows.slots + token, num_tokens);
}

/* Computes all rows for some columns of one head's matrix. */
static void NAME(delta_item)(const void *data, int64_t item) {
  const NAME(delta_call) *call = data;
  const int64_t head = item / call->num_parts, num_columns = call->value_size / call->num_parts;
  const int64_t column = item % call->num_parts * num_columns, key_size = call->key_size, value_size = call->value_size;
  const int64_t slot_size = call->num_heads * key_size * value_size, block_size = DELTA_VECTORS * STATE_LANES;
  const delta_columns slots = {call->matrices + head * key_size * value_size + column, value_size, block_size};
  const delta_columns kept = {call->kept + item * key_size * num_columns, block_size, key_size * block_size};
  const int64_t num_rows = call->rows.num_decode_rows + call->rows.num_prefill_rows;
  delta_tile tile;
  tile.key_size = key_size;
  tile.key_stride = (key_size + STATE_LANES - 1) / STATE_LANES * STATE_LANES;
  tile.num_columns = num_columns;
  for (int64_t row = 0, token = 0; row < num_rows; row++) {
    const state_row now = find_state_row(&call->rows, row, token);
    delta_columns state = now.source < 0 ? kept : slots;
    if (now.source >= 0) state.values += now.source * slot_size;
    else memset(kept.values, 0, (size_t)(key_size * num_columns) * sizeof(float));
    while (token < now.end) {
      const int64_t num_tokens = now.end - token < DELTA_TILE ? now.end - token : DELTA_TILE;
      NAME(load_tile)(call, head, column, token, num_tokens, &tile);
      state = advance_tile(&tile, state, kept, slots, slot_size);
      for (int64_t i = 0; i < num_tokens; i++, token++) {
        element *out = call->out + (token * call->num_heads + head) * value_size + column;
        const float *values = tile.values + i * num_columns;
        SIMD for (int64_t v = 0; v < num_columns; v++) out[v] = NARROW(values[v]);
      }
    }
  }
}

/* qkv: [num_tokens, 2 * num_key_heads * key_size + num_heads * value_size] and gates: [num_tokens, 2 * num_heads], rows that
   are `stride` and `gates_stride` elements apart; rates, biases: [num_heads]; matrices: [slots, num_heads, key_size,
   value_size]; out: [num_tokens, num_heads * value_size]. key_size: at most MOST_KEY_SIZE; value_size: a multiple of
   DELTA_COLUMNS, at most MOST_VALUE_SIZE. Returns 0, or -1 without memory. */
PUBLIC int NAME(gated_delta)(const element *qkv, const element *gates, const float *rates, const float *biases,
                             float *matrices, const int32_t *decode_sources, const int32_t *prefill_sources,
                             const int32_t *prefill_lens, const int32_t *slots, element *out, int64_t num_decode_rows,
                             int64_t num_prefill_rows, int64_t stride, int64_t gates_stride, int64_t num_heads,
                             int64_t num_key_heads, int64_t key_size, int64_t value_size, int64_t has_tiled_heads) {
  const int64_t slot_size = num_heads * key_size * value_size;
  char *room = kept_room((size_t)slot_size * sizeof(float) + 64);
  if (!room) return -1;
  float *kept = (float *)(void *)(room + (64 - (uintptr_t)room % 64) % 64);
  int64_t num_parts = 1;
  while (num_heads * num_parts < 4 * sluice_num_threads() && value_size % (2 * num_parts * DELTA_COLUMNS) == 0) num_parts *= 2;
  const NAME(delta_call) call = {
      qkv, gates, rates, biases, matrices, kept, out,
      {decode_sources, prefill_sources, prefill_lens, slots, num_decode_rows, num_prefill_rows},
      stride, gates_stride, num_heads, num_key_heads, key_size, value_size, has_tiled_heads, num_parts};
  run_items(num_heads * num_parts, count_row_tokens(&call.rows) * slot_size, NAME(delta_item), &call);
  return 0;
}
