/* The operations: what each returns (STATUS: 0, or -1 without memory) and takes, in order: P a pointer, I an int64_t, F a
   float; or ATTENTION, a pointer to attention_arguments. Only CAPTURED ones can be part of a captured step.
   ../library.py reads these lines. */
CAPTURED(VOID, embed, P(0), P(1), P(2), P(3), P(4), I(5), I(6), I(7))
CAPTURED(VOID, layer_norm, P(0), P(1), P(2), P(3), P(4), I(5), I(6), F(7))
CAPTURED(VOID, rms_norm, P(0), P(1), P(2), P(3), I(4), I(5), I(6), F(7))
CAPTURED(VOID, silu_mul, P(0), P(1), I(2), I(3))
CAPTURED(VOID, gelu_mul, P(0), P(1), P(2), I(3), I(4), I(5))
CAPTURED(VOID, swiglu_oai, P(0), P(1), I(2), I(3), F(4), F(5))
CAPTURED(VOID, gelu, P(0), P(1), I(2), I(3))
CAPTURED(VOID, rescale, P(0), P(1), I(2), I(3), F(4), F(5))
CAPTURED(VOID, rotate_store, P(0), P(1), P(2), P(3), P(4), P(5), P(6), P(7), P(8), P(9), P(10), P(11), I(12), I(13), I(14), I(15), I(16), I(17), F(18))
CAPTURED(STATUS, paged_decode, ATTENTION)
CAPTURED(STATUS, paged_prefill, ATTENTION)
CAPTURED(STATUS, quantized_linear, P(0), P(1), P(2), P(3), P(4), I(5), I(6), I(7), I(8))
CAPTURED(STATUS, block_linear, P(0), P(1), P(2), P(3), P(4), I(5), I(6), I(7), I(8))
CAPTURED(VOID, look_up_blocks, P(0), P(1), P(2), P(3), I(4), I(5), I(6))
CAPTURED(VOID, route_tokens, P(0), P(1), P(2), P(3), P(4), P(5), P(6), I(7), I(8), I(9), I(10), I(11), I(12), I(13), F(14))
CAPTURED(VOID, gather_rows, P(0), P(1), P(2), I(3), I(4))
CAPTURED(VOID, combine_experts, P(0), P(1), P(2), P(3), P(4), P(5), I(6), I(7), I(8))
CAPTURED(STATUS, expert_quantized_linear, P(0), P(1), P(2), P(3), P(4), I(5), I(6), I(7))
CAPTURED(STATUS, expert_block_linear, P(0), P(1), P(2), P(3), P(4), P(5), I(6), I(7))
CAPTURED(VOID, short_conv, P(0), P(1), P(2), P(3), P(4), P(5), P(6), P(7), P(8), I(9), I(10), I(11), I(12), I(13), I(14))
CAPTURED(VOID, mamba_scan, P(0), P(1), P(2), P(3), P(4), P(5), P(6), P(7), P(8), P(9), P(10), I(11), I(12), I(13), I(14), I(15), I(16), I(17), I(18), F(19), F(20))
EAGER(VOID, sum_magnitudes, P(0), P(1), I(2), I(3))
EAGER(VOID, quantize, P(0), P(1), P(2), I(3), I(4), I(5))
EAGER(STATUS, greedy, P(0), P(1), I(2), I(3))
CAPTURED(STATUS, draw, P(0), P(1), P(2), P(3), P(4), I(5), I(6))
#if !IS_BFLOAT16
EAGER(VOID, pack_blocks, P(0), P(1), P(2), I(3), I(4), I(5), I(6), I(7))
EAGER(STATUS, sample, P(0), P(1), P(2), P(3), I(4), I(5))
EAGER(VOID, apply_bitmask, P(0), P(1), P(2), I(3), I(4))
#endif
#if defined(__AVX2__)
EAGER(VOID, pack_linear, P(0), P(1), I(2), I(3), I(4), I(5))
CAPTURED(STATUS, packed_linear, P(0), P(1), P(2), P(3), I(4), I(5), I(6), I(7))
CAPTURED(STATUS, expert_packed_linear, P(0), P(1), P(2), P(3), P(4), I(5), I(6), I(7))
#endif
#if defined(__AVX512BF16__) && IS_BFLOAT16
CAPTURED(VOID, fp8_linear, P(0), P(1), P(2), P(3), I(4), I(5), I(6), I(7), I(8))
#endif
