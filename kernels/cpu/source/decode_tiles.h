/* Decode attention on tiles.

   An instruction adds the products of 32 elements: even and odd ones apart, and then both to the sums. They are counted from
   a head's first element and from a block's first key, as in prompts (prefill_tiles.h), so that a token's sums have the same
   bits. There the factors of V are swapped, which changes no product. */

#include "pairs.h"

/* Returns how many of a head's queries are computed together: as many as a tile has rows, if all tiles shall be equal. */
static int tile_queries(int64_t queries_a_head) {
  int width = queries_a_head < 16 ? (int)queries_a_head : 16;
  while (queries_a_head % width) width--;
  return width;
}

/* The pairs of a head's queries, [queries / width, padded dimension / 2, width]. */
static void KV(prepare_row)(const void *data, int64_t row) {
  const NAME(paged_decode_call) *call = data;
  const int64_t num_queries = call->of.num_heads * call->of.queries_a_head, head_dim = call->of.head_dim;
  const int padded_dim = PADDED_DIM((int)head_dim), width = tile_queries(call->of.queries_a_head);
  const uint16_t *query = (const uint16_t *)call->of.query + row * call->of.query_stride;
  uint32_t *out = (uint32_t *)(void *)call->queries + row * num_queries * padded_dim / 2;
  memset(out, 0, sizeof(uint16_t) * (size_t)(num_queries * padded_dim));
  for (int64_t first = 0; first < num_queries; first += width, out += width * padded_dim / 2)
    for (int q = 0; q < width; q++, query += head_dim) {
      int64_t pair = 0;
      for (; pair < head_dim / 2; pair++) memcpy(out + pair * width + q, query + 2 * pair, sizeof *out);
      if (head_dim % 2) out[pair * width + q] = query[head_dim - 1];
    }
}

/* Where the rows of a head's keys are, by 16 keys of the block, and how far apart. */
typedef struct {
  const uint16_t *groups[BLOCK / 16];
  int64_t stride;
} KV(key_rows);

/* Copies K of 32 keys of the block from its key `j` on; what is not among `keys` becomes 0. */
INLINE void KV(copy_keys)(KV(stretch) keys, int j, int head_dim, uint16_t *room, KV(key_rows) *rows) {
  const int padded_dim = PADDED_DIM(head_dim);
  rows->stride = padded_dim;
  for (int k = j; k < j + TILE_KEYS; k++, room += padded_dim) {
    const int at = k - keys.first, is_there = at >= 0 && at < keys.num_tokens;
    if (k % 16 == 0) rows->groups[k / 16] = room;
    for (int d = 0; d < padded_dim; d += 32) {
      const __mmask32 lanes = is_there ? lanes_from(d, head_dim) : 0;
      _mm512_storeu_si512(room + d, _mm512_maskz_loadu_epi16(lanes, keys.from + (is_there ? keys.offsets[at] : 0) + d));
    }
  }
}

/* Finds K of 32 keys in the cache, if the 16 keys of a tile are `stride` elements apart there. Tiles without keys repeat
   others: no query sees their scores. */
INLINE void KV(find_rows)(KV(stretch) keys, int j, int64_t stride, KV(key_rows) *rows) {
  const int end = keys.first + keys.num_tokens;
  rows->stride = stride;
  for (int k = j; k < j + TILE_KEYS; k += 16) {
    const int least = keys.begin < k ? k : keys.begin, key = least < end ? least : end - 1;
    rows->groups[k / 16] = keys.from + keys.offsets[key - keys.first] - (key - key / 16 * 16) * stride;
  }
}

/* V of 32 keys as pairs of two keys' elements, [16, padded dimension]; what is not among `keys` becomes 0. */
INLINE void KV(pair_values)(const uint16_t *values, KV(stretch) keys, int j, int head_dim, uint32_t *pairs) {
  const int padded_dim = PADDED_DIM(head_dim);
  for (int k = j; k < j + TILE_KEYS; k += 2, pairs += padded_dim)
    for (int d = 0; d < padded_dim; d += 32) {
      __m512i both[2];
      for (int i = 0; i < 2; i++) {
        const int at = k + i - keys.first, is_there = at >= 0 && at < keys.num_tokens;
        const __mmask32 lanes = is_there ? lanes_from(d, head_dim) : 0;
        both[i] = _mm512_maskz_loadu_epi16(lanes, values + (is_there ? keys.offsets[at] : 0) + d);
      }
      store_pairs(both[0], both[1], pairs + d);
    }
}

/* Scores of 32 keys of the block from its key `j` on with `width` queries; a query's scores are BLOCK apart. */
INLINE void KV(score_keys)(const KV(key_rows) *rows, int j, const uint32_t *query, int width, int padded_dim, float *scores) {
  const uint16_t *first = rows->groups[j / 16], *second = rows->groups[j / 16 + 1];
  const __m512i places = _mm512_mullo_epi32(_mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0),
                                            _mm512_set1_epi32(width));
  float room[TILE_KEYS * 16] __attribute__((aligned(LINE_BYTES)));
  WRITE_BEFORE_TILES();
  _tile_zero(0);
  _tile_zero(1);
  for (int d = 0; d < padded_dim; d += 32) {
    _tile_loadd(4, query + d / 2 * width, 4 * width);
    _tile_loadd(2, first + d, 2 * rows->stride);
    _tile_dpbf16ps(0, 2, 4);
    _tile_loadd(3, second + d, 2 * rows->stride);
    _tile_dpbf16ps(1, 3, 4);
  }
  _tile_stored(0, room, 4 * width);
  _tile_stored(1, room + 16 * width, 4 * width);
  for (int q = 0; q < width; q++, scores += BLOCK) {
    _mm512_storeu_ps(scores + j, _mm512_i32gather_ps(places, room + q, 4));
    _mm512_storeu_ps(scores + j + 16, _mm512_i32gather_ps(places, room + 16 * width + q, 4));
  }
}

/* Adds 32 keys' pairs to the sums of V; queries' weights are BLOCK floats apart. */
INLINE void KV(add_values)(const float *weights, const uint32_t *pairs, int padded_dim, const int is_first, float *sums) {
  WRITE_BEFORE_TILES();
  for (int d = 0; d < padded_dim; d += 32) {
    if (is_first) {
      _tile_zero(5);
      _tile_zero(6);
    } else {
      _tile_loadd(5, sums + d, 4 * padded_dim);
      _tile_loadd(6, sums + d + 16, 4 * padded_dim);
    }
    _tile_loadd(7, weights, 4 * BLOCK);
    _tile_loadd(2, pairs + d, 4 * padded_dim);
    _tile_dpbf16ps(5, 7, 2);
    _tile_loadd(3, pairs + d + 16, 4 * padded_dim);
    _tile_dpbf16ps(6, 7, 3);
    _tile_stored(5, sums + d, 4 * padded_dim);
    _tile_stored(6, sums + d + 16, 4 * padded_dim);
  }
}

/* Attends to a split's keys with all queries of `num_heads` heads of a row, from the call's query `first` on; it prefetches
   as attend_split does. `ready` and `pairs`: K and V of one head's whole block, or null. */
static void KV(attend_tiles)(const NAME(paged_decode_call) *call, int64_t first, KV(stretch) keys, KV(stretch) next,
                             int num_heads, int ahead, const KV(key_rows) *ready, const uint32_t *pairs, softmax *softmaxes,
                             float *sums) {
  const int queries = (int)call->of.queries_a_head, num_queries = num_heads * queries, head_dim = (int)call->of.head_dim;
  const int padded_dim = PADDED_DIM(head_dim), width = tile_queries(queries), end = keys.first + keys.num_tokens;
  const int is_regular = head_dim % 32 == 0 && call->of.page_size % 16 == 0;
  const uint16_t *base = (const uint16_t *)call->of.values + (keys.from - (const uint16_t *)call->of.keys);
  const KV(stretch) values = {base, keys.offsets, keys.num_tokens, keys.first, keys.begin};
  const uint32_t *query = (const uint32_t *)(const void *)call->queries + first * padded_dim / 2;
  const int begin = keys.begin / TILE_KEYS * TILE_KEYS;
  float scores[MAX_ITEM_QUERIES * BLOCK] __attribute__((aligned(LINE_BYTES)));
  uint32_t room[TILE_KEYS / 2 * PADDED_DIM(MAX_HEAD_DIM)] __attribute__((aligned(LINE_BYTES)));
  KV(cursor) cursor = KV(begin_at)(keys, values, ahead, num_heads * head_dim);
  for (int j = begin; j < end; j += TILE_KEYS)
    for (int h = 0; h < num_heads; h++) {
      KV(stretch) mine = keys;
      KV(key_rows) rows;
      mine.from += h * head_dim;
      KV(ask_lines)(&cursor, TILE_KEYS * cursor.num_lines / num_heads);
      if (!ready && is_regular) KV(find_rows)(mine, j, call->of.num_heads * head_dim, &rows);
      else if (!ready) KV(copy_keys)(mine, j, head_dim, (uint16_t *)room, &rows);
      for (int q = h * queries; q < (h + 1) * queries; q += width)
        KV(score_keys)(ready ? ready : &rows, j, query + q * padded_dim / 2, width, padded_dim, scores + q * BLOCK);
    }
  for (int q = 0; q < num_queries; q++) {
    const float rate = (float)call->of.scale * LOG2_E;
    float *mine = scores + q * BLOCK;
    if (call->of.softcap != 0.0) cap_scores(mine + keys.begin, end - keys.begin, (float)call->of.softcap * LOG2_E / rate);
    softmaxes[q] = weigh_pairs(mine, keys.begin, end, rate);
    round_to_pairs(mine);
  }
  cursor = KV(begin_at)(values, next, ahead, num_heads * head_dim);
  for (int j = begin; j < end; j += TILE_KEYS)
    for (int h = 0; h < num_heads; h++) {
      KV(ask_lines)(&cursor, TILE_KEYS * cursor.num_lines / num_heads);
      const int is_paired = pairs && j + TILE_KEYS <= end; /* V of keys that the row does not see may be anything */
      if (!is_paired) KV(pair_values)(base + h * head_dim, keys, j, head_dim, room);
      const uint32_t *added = is_paired ? pairs + j / 2 * padded_dim : room;
      for (int q = h * queries; q < (h + 1) * queries; q += width)
        KV(add_values)(scores + q * BLOCK + j / 2, added, padded_dim, j == begin, sums + q * padded_dim);
    }
}

/* Attends to the keys of a split with its row. */
static void KV(attend_row)(const NAME(paged_decode_call) *call, int64_t split, KV(stretch) keys, KV(stretch) next,
                           int64_t head, int64_t num_heads, int ahead) {
  const int64_t place = KV(place_of)(call, split, head), query = KV(place_of)(call, call->plan->splits[split].row, head);
  KV(attend_tiles)
  (call, query, keys, next, (int)num_heads, ahead, 0, 0, call->softmaxes + place, call->sums + place * PADDED_DIM(call->of.head_dim));
}

/* Attends to a group's keys with the rows of all splits from `first_split` on, head after head. */
static void KV(attend_near_rows)(const NAME(paged_decode_call) *call, int64_t first_split, KV(stretch) keys, int64_t head,
                                 int64_t num_heads) {
  const int head_dim = (int)call->of.head_dim, padded_dim = PADDED_DIM(head_dim);
  const uint16_t *values = call->of.values;
  uint16_t room[BLOCK * PADDED_DIM(MAX_HEAD_DIM)] __attribute__((aligned(LINE_BYTES)));
  uint32_t pairs[BLOCK / 2 * PADDED_DIM(MAX_HEAD_DIM)] __attribute__((aligned(LINE_BYTES)));
  for (; num_heads > 0; num_heads--, head++, keys.from += head_dim, values += head_dim) {
    KV(key_rows) ready;
    for (int j = 0; j < BLOCK; j += TILE_KEYS) {
      KV(copy_keys)(keys, j, head_dim, room + j * padded_dim, &ready);
      KV(pair_values)(values, keys, j, head_dim, pairs + j / 2 * padded_dim);
    }
    for (int64_t split = first_split; split != NO_SPLIT; split = call->plan->splits[split].next) {
      const KV(stretch) mine = KV(keys_of)(call, split, keys);
      const int64_t place = KV(place_of)(call, split, head), query = KV(place_of)(call, call->plan->splits[split].row, head);
      KV(attend_tiles)
      (call, query, mine, mine, 1, NOTHING_AHEAD, &ready, pairs, call->softmaxes + place, call->sums + place * padded_dim);
    }
  }
}
