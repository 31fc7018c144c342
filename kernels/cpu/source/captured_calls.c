/* Each operation of a decode step as a function of captured arguments: `call_NAME`. */

#define P(index) arguments[index].pointer
#define I(index) arguments[index].integer
#define F(index) arguments[index].number
#define CALL(name) PUBLIC int NAME(call_##name)(const call_argument *arguments)

CALL(embed) {
  NAME(embed)(P(0), P(1), P(2), P(3), P(4), I(5), I(6));
  return 0;
}

CALL(layer_norm) {
  NAME(layer_norm)(P(0), P(1), P(2), P(3), P(4), I(5), I(6), F(7));
  return 0;
}

CALL(rms_norm) {
  NAME(rms_norm)(P(0), P(1), P(2), P(3), I(4), I(5), F(6));
  return 0;
}

CALL(qk_norm) {
  NAME(qk_norm)(P(0), P(1), P(2), I(3), I(4), I(5), I(6), F(7));
  return 0;
}

CALL(silu_mul) {
  NAME(silu_mul)(P(0), P(1), I(2), I(3));
  return 0;
}

CALL(gelu) {
  NAME(gelu)(P(0), P(1), I(2), I(3));
  return 0;
}

CALL(store_kv) {
  NAME(store_kv)(P(0), P(1), P(2), P(3), P(4), P(5), P(6), P(7), P(8), I(9), I(10), I(11), I(12), I(13));
  return 0;
}

CALL(paged_decode) {
  return NAME(paged_decode)(P(0), I(1), P(2), P(3), P(4), I(5), P(6), P(7), I(8), I(9), I(10), I(11), I(12), F(13));
}

CALL(quantized_linear) {
  NAME(quantized_linear)(P(0), P(1), P(2), P(3), P(4), I(5), I(6), I(7), I(8), I(9));
  return 0;
}

CALL(greedy) { return NAME(greedy)(P(0), P(1), I(2), I(3)); }

#if IS_BFLOAT16 && defined(__AVX512BF16__)
CALL(packed_linear) { return NAME(packed_linear)(P(0), P(1), P(2), P(3), I(4), I(5), I(6), I(7)); }
#endif

#undef P
#undef I
#undef F
#undef CALL
