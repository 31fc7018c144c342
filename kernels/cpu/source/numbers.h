/* Numbers: bfloat16, 2^x, and the vectors of the machine. */
#ifndef SLUICE_NUMBERS_H
#define SLUICE_NUMBERS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline))
#define PRAGMA(text) _Pragma(#text)
#define SIMD PRAGMA(omp simd)
#define SIMD_SUM(variable) PRAGMA(omp simd reduction(+ : variable))
#define LOG2_E 1.44269504088896341f

INLINE uint32_t bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

INLINE float float_of(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

INLINE float widen_bfloat16(uint16_t x) { return float_of((uint32_t)x << 16); }

/* 8 floats of a register. */
typedef float lanes __attribute__((vector_size(32), aligned(4), may_alias));
enum { LANES = 8 };

INLINE lanes load_float32(const float *x) { return *(const lanes *)x; }

#if defined(__AVX2__)
INLINE lanes load_bfloat16(const uint16_t *x) {
  return (lanes)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)x)), 16);
}

/* The sums of four vectors, each added in the same order. */
INLINE void sum_four(const lanes *x, float *sums) {
  const __m256 low = _mm256_hadd_ps((__m256)x[0], (__m256)x[1]), high = _mm256_hadd_ps((__m256)x[2], (__m256)x[3]);
  const __m256 halves = _mm256_hadd_ps(low, high);
  _mm_storeu_ps(sums, _mm_add_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps(halves, 1)));
}
#else
INLINE lanes load_bfloat16(const uint16_t *x) {
  lanes wide;
  for (int i = 0; i < LANES; i++) wide[i] = widen_bfloat16(x[i]);
  return wide;
}

INLINE void sum_four(const lanes *x, float *sums) {
  for (int k = 0; k < 4; k++) {
    sums[k] = 0.0f;
    for (int i = 0; i < LANES; i++) sums[k] += x[k][i];
  }
}
#endif

/* Rounds to the nearest, ties to even; NaN stays NaN. */
INLINE uint16_t narrow_bfloat16(float x) {
  uint32_t bits = bits_of(x);
  uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return (uint16_t)(x != x ? 0x7fc0u : rounded);
}

INLINE float widen_float32(float x) { return x; }
INLINE float narrow_float32(float x) { return x; }

/* Returns 2^x for x <= 127: 0 below -126, NaN for NaN. The polynomial's relative error is at most 9.2e-8, the result's 2e-7;
   its halves are independent (Estrin's scheme), since a chain of six operations would stall the processor. */
INLINE float power_of_2(float x) {
  const float to_integer = 12582912.0f; /* 1.5 * 2^23: adding it leaves the nearest integer in the low bits */
  float clamped = x < -126.0f ? -126.0f : x;
  float shifted = clamped + to_integer;
  float f = clamped - (shifted - to_integer);
  float square = f * f, low = 6.931469775990662e-1f * f + 1.0f;
  float middle = 5.550733743324804e-2f * f + 2.402224208521572e-1f;
  float high = 1.326472720648088e-3f * f + 9.671512650095353e-3f;
  float p = (high * square + middle) * square + low;
  float scaled = float_of(bits_of(p) + (bits_of(shifted) << 23));
  return x < -126.0f ? 0.0f : scaled;
}

/* x / (1 + 2^power), which is x times the sigmoid of -power * ln 2. */
INLINE float times_sigmoid(float x, float power) { return x / (1.0f + power_of_2(power > 126.0f ? 126.0f : power)); }

/* The natural logarithm of a positive normal number. Cephes' polynomial, relative error about 1e-7. */
INLINE float logarithm(float x) {
  const uint32_t bits = bits_of(x) - 0x3f3504f3u; /* sqrt(1/2): the mantissa lies around 1 */
  const float exponent = (float)((int32_t)bits >> 23);
  const float f = float_of((bits & 0x007fffffu) + 0x3f3504f3u) - 1.0f, square = f * f;
  float p = 7.0376836292e-2f;
  p = p * f - 1.1514610310e-1f;
  p = p * f + 1.1676998740e-1f;
  p = p * f - 1.2420140846e-1f;
  p = p * f + 1.4249322787e-1f;
  p = p * f - 1.6668057665e-1f;
  p = p * f + 2.0000714765e-1f;
  p = p * f - 2.4999993993e-1f;
  p = p * f + 3.3333331174e-1f;
  p = p * f * square - 2.12194440e-4f * exponent - 0.5f * square;
  return f + p + 0.693359375f * exponent;
}

/* log(1 + e^x), computed in float32. Kahan's correction of log(1 + y) restores the digits that the sum loses. */
INLINE float softplus(float x) {
  const float power = power_of_2(x < 20.0f ? x * LOG2_E : 20.0f), sum = 1.0f + power, kept = sum - 1.0f;
  const float result = kept > 0.0f ? logarithm(sum) * (power / kept) : power;
  return x < 20.0f ? result : x; /* NaN stays NaN */
}

#if defined(__AVX512BF16__)
/* power_of_2 of 16 numbers, for results that become bfloat16. */
INLINE __m512 powers_of_2(__m512 x) {
  const __m512 clamped = _mm512_max_ps(_mm512_set1_ps(-200.0f), x); /* NaN stays NaN */
  const __m512 whole = _mm512_roundscale_ps(clamped, 0), f = _mm512_sub_ps(clamped, whole);
  __m512 p = _mm512_set1_ps(1.339887440266574e-3f);
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(9.618437357674640e-3f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.550332471162809e-2f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.402264791363012e-1f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.931472028550421e-1f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(p, whole);
}

/* 2^x with a relative error of 9e-5: rounding to bfloat16 adds up to forty times as much. NaN if x is not finite. */
INLINE __m512 rough_powers_of_2(__m512 x) {
  const __m512 f = _mm512_sub_ps(x, _mm512_roundscale_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC));
  __m512 p = _mm512_set1_ps(0.0770672f);
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.22764482f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.69511682f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(p, x); /* which rounds x down */
}

/* x * sigmoid(x) of 16 numbers, for results that become bfloat16. */
INLINE __m512 silu_vector(__m512 x) {
  const __m512 limit = _mm512_set1_ps(126.0f);
  __m512 power = _mm512_min_ps(limit, _mm512_mul_ps(x, _mm512_set1_ps(-LOG2_E))); /* NaN stays NaN */
  power = _mm512_max_ps(_mm512_sub_ps(_mm512_setzero_ps(), limit), power);
  return _mm512_mul_ps(x, _mm512_rcp14_ps(_mm512_add_ps(_mm512_set1_ps(1.0f), rough_powers_of_2(power))));
}

/* The mask of the first `left` of 16 elements. */
INLINE __mmask16 lanes_of(int64_t left) { return left >= 16 ? 0xffff : left > 0 ? (__mmask16)((1u << left) - 1) : 0; }

/* The mask of the 32 elements from the d-th on that exist. */
INLINE __mmask32 lanes_from(int64_t d, int64_t num_elements) {
  return num_elements - d >= 32 ? 0xffffffffu : (__mmask32)((1ull << (num_elements - d)) - 1);
}

INLINE __m512 widen_vector(__m256i x) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16)); }
INLINE __m256i narrow_vector(__m512 x) { return (__m256i)_mm512_cvtneps_pbh(x); }

INLINE __m512 round_vector(__m512 x) { return widen_vector(narrow_vector(x)); }

/* Loads and stores; missing lanes are 0. Only partial vectors use a mask, which is several times slower with memory outside
   of a core's caches. */
INLINE __m512 load_vector(const uint16_t *x, __mmask16 lanes) {
  return widen_vector(lanes == 0xffff ? _mm256_loadu_si256((const __m256i *)x) : _mm256_maskz_loadu_epi16(lanes, x));
}
INLINE __m512 load_floats(const float *x, __mmask16 lanes) {
  return lanes == 0xffff ? _mm512_loadu_ps(x) : _mm512_maskz_loadu_ps(lanes, x);
}
INLINE void store_vector(uint16_t *out, __mmask16 lanes, __m512 x) {
  if (lanes == 0xffff) _mm256_storeu_si256((__m256i *)out, narrow_vector(x));
  else _mm256_mask_storeu_epi16(out, lanes, narrow_vector(x));
}
#endif

/* Returns tanh x with a relative error of at most 1e-6: near 0 as a series, since there 1 - e^-2x loses digits. */
INLINE float tanh_of(float x) {
  const float size = x < 0.0f ? -x : x, square = x * x, power = power_of_2(-2.0f * LOG2_E * size);
  const float near = size - size * square * (0.33333333f - square * (0.13333333f - square * 0.053968254f));
  const float result = size < 0.1f ? near : (1.0f - power) / (1.0f + power);
  return x < 0.0f ? -result : result;
}

INLINE float gelu_tanh(float x) {
  /* (1 + tanh u) / 2 = 1 / (1 + e^-2u), u = sqrt(2 / pi) * (x + 0.044715 x^3) */
  return times_sigmoid(x, -2.0f * 0.79788456080286536f * LOG2_E * (x + 0.044715f * x * x * x));
}

/* The GELU that follows a linear layer or gates another one. */
enum { NO_GELU, TANH_GELU, EXACT_GELU };

/* erfc z = (a polynomial in t = 1 / (1 + 0.3275911 z)) e^-z^2 for z >= 0, error at most 1.5e-7 (Abramowitz and Stegun, 7.1.26);
   these are its coefficients, halved. */
#define ERFC(OP, FIRST, t) OP(OP(OP(OP(OP(FIRST(0.5307027145f), t, -0.7265760135f), t, 0.7107068705f), t, -0.142248368f), t, 0.127414796f), t, 0.0f)

INLINE float times_plus(float a, float b, float c) { return a * b + c; }

/* x Phi(x), where Phi is the normal distribution's function. */
INLINE float gelu_exact(float x) {
  const float size = x < 0.0f ? -x : x, t = 1.0f / (1.0f + 0.3275911f * 0.70710678f * size);
  const float rest = ERFC(times_plus, , t) * power_of_2(-0.5f * LOG2_E * x * x);
  return x * (x < 0.0f ? rest : 1.0f - rest);
}

#if defined(__AVX512BF16__)
/* gelu_exact of 16 numbers, for results that become bfloat16. */
INLINE __m512 gelu_exact_vector(__m512 x) {
  const __m512 one = _mm512_set1_ps(1.0f);
  const __m512 t = _mm512_rcp14_ps(_mm512_fmadd_ps(_mm512_abs_ps(x), _mm512_set1_ps(0.3275911f * 0.70710678f), one));
  __m512 power = _mm512_mul_ps(_mm512_mul_ps(x, x), _mm512_set1_ps(-0.5f * LOG2_E));
  power = rough_powers_of_2(_mm512_max_ps(_mm512_set1_ps(-126.0f), power)); /* NaN stays NaN */
#define VECTOR_OP(a, b, c) _mm512_fmadd_ps(a, b, _mm512_set1_ps(c))
  const __m512 rest = _mm512_mul_ps(ERFC(VECTOR_OP, _mm512_set1_ps, t), power);
#undef VECTOR_OP
  const __mmask16 is_negative = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ);
  return _mm512_mul_ps(x, _mm512_mask_sub_ps(rest, (__mmask16)~is_negative, one, rest));
}
#endif

#endif
