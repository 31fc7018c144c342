/* The rows of a step whose sequences have a recurrent state: kernels/arguments/state_rows.py. */
#ifndef SLUICE_STATE_ROWS_H
#define SLUICE_STATE_ROWS_H

/* The floats of a register. */
#if defined(__AVX512F__)
typedef float state_lanes __attribute__((vector_size(64), aligned(4), may_alias));
#elif defined(__AVX2__)
typedef lanes state_lanes;
#else
typedef float state_lanes __attribute__((vector_size(16), aligned(4), may_alias));
#endif

enum { STATE_LANES = sizeof(state_lanes) / sizeof(float) };
#define LOAD_STATE(x) (*(const state_lanes *)(x))

/* a * b + c. With AVX2 no compiler chooses which of two products it rounds. */
INLINE state_lanes multiply_add(state_lanes a, float b, state_lanes c) {
#if defined(__AVX512F__)
  return (state_lanes)_mm512_fmadd_ps((__m512)a, _mm512_set1_ps(b), (__m512)c);
#elif defined(__FMA__)
  return (state_lanes)_mm256_fmadd_ps((__m256)a, _mm256_set1_ps(b), (__m256)c);
#else
  return a * b + c;
#endif
}

/* Eight floats with the same sum. */
INLINE lanes as_lanes(state_lanes x) {
#if defined(__AVX512F__)
  const __m512 all = (__m512)x;
  return (lanes)_mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
#elif defined(__AVX2__)
  return x;
#else
  return (lanes){x[0], x[1], x[2], x[3]};
#endif
}

/* The slot with the state before the first token, or -1; the row's tokens, without `end`. */
typedef struct {
  int64_t source, first, end;
} state_row;

/* Returns a row whose first token is `first`, the end of the previous row. A row may read a slot that an earlier one stores:
   rows are computed in order. */
INLINE state_row find_state_row(const state_rows *rows, int64_t row, int64_t first) {
  const int64_t prefill_row = row - rows->num_decode_rows;
  if (prefill_row < 0) return (state_row){rows->decode_sources[row], first, first + 1};
  return (state_row){rows->prefill_sources[prefill_row], first, first + rows->prefill_lens[prefill_row]};
}

INLINE int64_t count_row_tokens(const state_rows *rows) {
  int64_t num_tokens = rows->num_decode_rows;
  for (int64_t row = 0; row < rows->num_prefill_rows; row++) num_tokens += rows->prefill_lens[row];
  return num_tokens;
}

#endif
