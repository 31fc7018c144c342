"""Runs every C kernel of a library once an instruction set, on shapes that end amid vectors, blocks and pages.

`python -m tests.kernels.cpu.every_kernel LIBRARY`: for a library that was built to watch its own memory accesses.
"""

import sys
from pathlib import Path
from typing import Any

import torch

from kernels.arguments.block_rows import Segment
from kernels.arguments.packed_blocks import PackedBlocks, packed_bytes
from kernels.arguments.packed_forms import FORMS
from kernels.arguments.routes import Routing
from kernels.arguments.rows import HeadNorms, PrefillRows, RopeTables
from kernels.cpu.build import built_isas
from kernels.cpu.capture import capture_calls
from kernels.cpu.library import use_library
from kernels.formats.embed import embed
from kernels.formats.packed import PackedWeight
from kernels.formats.packed_blocks import PackedBlocksFormat
from kernels.formats.packed_fp8 import PackedFp8Format
from kernels.formats.plain import PlainWeight
from kernels.formats.quantized import QUANTIZED
from kernels.operations.apply_bitmask import apply_bitmask
from kernels.operations.block_linear import block_linear, look_up_rows, pack_block_rows
from kernels.operations.experts import combine_experts, gather_rows, route_tokens
from kernels.operations.gated_delta import gated_delta
from kernels.operations.gated_norm import gated_norm
from kernels.operations.gelu import gelu
from kernels.operations.gelu_mul import gelu_mul
from kernels.operations.join_heads import join_heads
from kernels.operations.layer_norm import layer_norm
from kernels.operations.lora_linear import lora_linear
from kernels.operations.mamba_scan import mamba_scan
from kernels.operations.packed_linear import pack, packed_linear
from kernels.operations.paged_decode import paged_decode
from kernels.operations.paged_prefill import paged_prefill
from kernels.operations.quantize import quantize
from kernels.operations.relu_squared import relu_squared
from kernels.operations.rescale import rescale
from kernels.operations.rms_norm import rms_norm
from kernels.operations.rotate_store import rotate_store
from kernels.operations.sample import draw, greedy, sample
from kernels.operations.short_conv import short_conv
from kernels.operations.sigmoid_gate import sigmoid_gate
from kernels.operations.silu_mul import silu_mul
from tests.kernels import encoder_cases
from tests.kernels.cases import OPTIONS, Shape, assert_close, make_paged_case, with_codes
from tests.kernels.gpu.plausible_blocks import plausible_rows
from tests.kernels.latent_cases import (
    LatentShape,
    attend_decode,
    attend_prefill,
    make_latent_case,
    with_latent_codes,
)
from tests.kernels.lora_cases import expect, make_slots, on_device
from tests.kernels.state_cases import NUM_TOKENS, make_decay, make_states, mixed_rows

SHAPES = [Shape(6, 2, 64, 16), Shape(7, 1, 80, 1), Shape(4, 4, 96, 64), Shape(5, 1, 128, 16), Shape(3, 3, 10, 4)]


def attend(shape: Shape, dtype: torch.dtype, **options: Any) -> None:
    case = make_paged_case(shape, [1, 66, 17], [0, 61, 300], dtype, "cpu", **options)
    out = torch.full_like(case.query, float("nan"))
    rows = PrefillRows(case.page_tables, case.query_lens, case.context_lens)
    paged_prefill(case.query, case.cache, rows, case.options, out)
    assert_close(out, case.expected, dtype)
    case = make_paged_case(shape, [1, 1, 1, 1], [0, 63, 299, 299], dtype, "cpu", **options)
    out = torch.full_like(case.query, float("nan"))
    paged_decode(case.query, case.cache, case.page_tables, case.context_lens + 1, case.options, out)
    assert_close(out, case.expected, dtype)
    case.page_tables[3, : 256 // shape.page_size] = case.page_tables[2, : 256 // shape.page_size].clone()
    paged_decode(case.query, case.cache, case.page_tables, case.context_lens + 1, case.options, out)
    assert_close(out[:3], case.expected[:3], dtype)


def attend_whole(shape: encoder_cases.EncoderShape, dtype: torch.dtype) -> None:
    heads, bias = encoder_cases.make_heads(shape, dtype)
    out = encoder_cases.run(heads, bias, shape, encoder_cases.NUM_SINGLE, encoder_cases.LENS)
    assert_close(out, encoder_cases.expected(heads, bias, shape), dtype)


def attend_latents(shape: LatentShape, dtype: torch.dtype) -> None:
    prompts = make_latent_case(shape, [1, 66, 17], [0, 61, 300], dtype)
    rows = make_latent_case(shape, [1, 1, 1], [0, 63, 299], dtype)
    for case, attend in ((prompts, attend_prefill), (rows, attend_decode)):
        for own in (case, with_latent_codes(case, shape.rank)):
            assert_close(attend(own, shape.rank), own.expected[..., : shape.rank], dtype)
    join_heads(torch.randn(3, 5, 7).to(dtype))


def attend_codes(shape: Shape, dtype: torch.dtype, **options: Any) -> None:
    case = with_codes(make_paged_case(shape, [1, 66], [0, 61], dtype, "cpu", **options), torch.int8)
    out = torch.full_like(case.query, float("nan"))
    rows = PrefillRows(case.page_tables, case.query_lens, case.context_lens)
    paged_prefill(case.query, case.cache, rows, case.options, out)
    assert_close(out, case.expected, dtype)
    last = torch.tensor([0, 66])
    decoded, num_keys = out[last].clone(), case.context_lens + case.query_lens
    paged_decode(case.query[last], case.cache, case.page_tables, num_keys, case.options, decoded)
    assert_close(decoded, case.expected[last], dtype)


def store(shape: Shape, dtype: torch.dtype) -> None:
    case = make_paged_case(shape, [3], [0], dtype, "cpu")
    heads = torch.randn(3, shape.num_heads + 2 * shape.num_kv_heads, shape.head_dim).to(dtype)
    tables = RopeTables(torch.rand(8, shape.head_dim // 2), torch.rand(8, shape.head_dim // 2))
    positions, slots = torch.tensor([7, 0, 1], dtype=torch.int32), torch.tensor([len(case.cache.keys) - 1, -1, 0])
    weight = torch.ones(shape.head_dim, dtype=dtype)
    for rope, norms in ((tables, None), (None, None), (tables, HeadNorms(weight, weight, 1e-6))):
        for cache in (case.cache, with_codes(case, torch.int8).cache):
            assert bool(rotate_store(heads, cache, rope, positions, slots, norms).isfinite().all())


def replay(size: int, dtype: torch.dtype) -> None:
    ids, tables = torch.arange(40, dtype=torch.int32), torch.randn(2, 40, size).to(dtype)
    table, positions = PlainWeight(tables[0]), tables[1]
    weight, bits = torch.ones(size, dtype=dtype), quantize(torch.randn(70, size).to(dtype), 8)
    out, calls, _ = capture_calls(
        lambda: block_linear(rms_norm(embed(ids, ids, table, positions), weight, 1e-5), bits, None)
    )
    expected = out.clone()
    assert calls is not None
    calls.replay()
    assert torch.equal(out, expected)


def compute(size: int, dtype: torch.dtype) -> None:
    x, update = torch.randn(2, 3, size).to(dtype)
    ones = torch.ones(size, dtype=dtype)
    for out in (
        layer_norm(x, ones, ones, 1e-5, update),
        rms_norm(x, ones, 1e-5, update),
        gelu(x, "tanh"),
        gelu(x, "exact"),
        silu_mul(torch.cat((x, update), dim=-1)),
        gelu_mul(torch.cat((x, update), dim=-1)),
        gelu_mul(torch.cat((x, update), dim=-1), kind="exact"),
        relu_squared(x.clone()),
        rescale(x.clone(), 2.0, update),
        rescale(x.clone(), 2.0, softcap=3.0),
    ):
        assert bool(out.isfinite().all())
    assert greedy(x).tolist() == x.max(dim=-1).indices.tolist()
    tokens = sample(x.float(), torch.tensor([1, -2, 3]), torch.arange(3))
    assert bool(((tokens >= 0) & (tokens < size)).all())
    logits = x.float().clone()
    apply_bitmask(logits, torch.tensor([2, 0]), torch.full((2, -(-size // 32)), 0x55555555, dtype=torch.int32))
    assert bool((logits[::2].isfinite() == (torch.arange(size) % 2 == 0)).all())
    drawn = draw(x, torch.tensor([0.0, 0.5, 2.0]), torch.tensor([1, -2, 3]), torch.arange(3))
    assert int(drawn[0]) == int(greedy(x)[0])
    assert bool(((drawn >= 0) & (drawn < size)).all())


def multiply(num_tokens: int, num_inputs: int, dtype: torch.dtype) -> None:
    x, weight = torch.randn(num_tokens, num_inputs).to(dtype), torch.randn(70, num_inputs).to(dtype)
    packed_linear(x.float(), pack(weight), torch.randn(70), 70, "exact")
    out = packed_linear(x, pack(weight), torch.randn(70).to(dtype), 70, "tanh")
    assert bool(out.isfinite().all())
    bias = torch.randn(70).to(dtype)
    for bits in (8, 4):
        assert bool(block_linear(x, quantize(weight, bits), bias, "tanh").isfinite().all())
    if dtype == torch.bfloat16:
        floats = PackedFp8Format(32).allocate((70, num_inputs), dtype, x.device)
        floats.set_rows(0, plausible_rows("F8_32", 70, num_inputs))
        out = floats.linear(torch.randn(70).to(dtype), "tanh")(x)
        assert bool(out.isfinite().all())


def multiply_blocks(num_tokens: int, dtype: torch.dtype) -> None:
    for form in FORMS.keys() - {"int4", "int8"}:
        segments = ((form, 33), ("Q8_0", 3))
        weight = PackedBlocks(torch.empty(packed_bytes(segments, 768), dtype=torch.uint8), segments, 768)
        for index, (name, num_outputs) in enumerate(segments):
            rows = plausible_rows(name, num_outputs, 768).blocks
            pack_block_rows(weight, index, 1, rows[1:].clone())
            pack_block_rows(weight, index, 0, rows[:1].clone())
        out = block_linear(torch.randn(num_tokens, 768).to(dtype), weight, torch.randn(36).to(dtype), "tanh")
        assert bool(out.isfinite().all())
        assert bool(look_up_rows(weight, torch.arange(36), dtype).isfinite().all())


def route(num_tokens: int, dtype: torch.dtype) -> None:
    """Experts of 64 outputs, in each kind of weight, and the sum of their outputs."""
    x, logits = torch.randn(num_tokens, 256).to(dtype), torch.randn(num_tokens, 7).to(dtype)
    values = torch.randn(7 * 64, 256).to(dtype)
    blocks = PackedBlocksFormat([Segment("Q4_K", 7 * 64)]).allocate((7 * 64, 256), dtype, x.device)
    blocks.set_rows(0, plausible_rows("Q4_K", 7 * 64, 256))
    routes = route_tokens(logits, Routing(num_chosen=3, is_renormalized=True))
    rows = gather_rows(x, routes)
    for weight in (
        PackedWeight(pack(values), *values.shape),
        *(QUANTIZED[bits].quantize(values) for bits in (8, 4)),
        blocks,
    ):
        out = combine_experts(
            weight.experts(torch.randn(7 * 64).to(dtype))(rows, routes, None),
            routes,
            x[:, :64].clone(),
            logits[:, :1].contiguous(),
        )
        assert bool(out.isfinite().all())


def scan(num_heads: int, value_size: int, state_size: int, dtype: torch.dtype) -> None:
    """Recurrent layers, with as many taps of the convolution as heads."""
    num_channels, rows = (num_heads + 2) * max(value_size, state_size), mixed_rows("cpu")
    x, tails = (
        torch.randn(NUM_TOKENS, 3 * num_channels).to(dtype),
        make_states((num_heads - 1, num_channels), dtype, "cpu"),
    )
    weight = torch.randn(num_channels, num_heads).to(dtype)
    assert bool(short_conv(x, weight, None, tails, rows, is_gated=True).isfinite().all())
    assert bool(short_conv(x[:, :num_channels], weight, weight[:, 0].contiguous(), tails, rows).isfinite().all())
    matrices, decay = (
        make_states((num_heads, value_size, state_size), torch.float32, "cpu"),
        make_decay(num_heads, "cpu"),
    )
    xbc, time = x[:, : num_heads * value_size + 2 * state_size], x[:, -num_heads:]
    assert bool(mamba_scan(xbc, time, decay, torch.randn(num_heads), matrices, rows).isfinite().all())


def correct(num_heads: int, num_key_heads: int, key_size: int, value_size: int, dtype: torch.dtype) -> None:
    """Gated DeltaNet and the gates of its kind."""
    size, rows = num_heads * value_size, mixed_rows("cpu")
    num_inputs = 2 * num_key_heads * key_size + size
    x, matrices = (
        torch.randn(NUM_TOKENS, num_inputs + 2 * num_heads + size).to(dtype),
        make_states((num_heads, key_size, value_size), torch.float32, "cpu"),
    )
    qkv, gates, gate = x.split((num_inputs, 2 * num_heads, size), 1)
    out = gated_delta(qkv, gates, make_decay(num_heads, "cpu"), matrices, rows)
    for norms_first in (True, False):
        for weight in (torch.ones(value_size, dtype=dtype), torch.ones(size, dtype=dtype), None):
            gated_norm(out, gate, weight, 1e-5, value_size, norms_first=norms_first)
    assert bool(sigmoid_gate(out, gate).isfinite().all())


def add_updates(num_inputs: int, sizes: tuple[int, ...], dtype: torch.dtype) -> None:
    slots, lora = [0, 3, -1, 2, 3, 3, 3, 3, 3, 3, 3, 3], make_slots(num_inputs, sizes, dtype, "cpu")
    x_TI, out_TO = torch.randn(len(slots), num_inputs).to(dtype), torch.randn(len(slots), sum(sizes)).to(dtype)
    expected = expect(x_TI, lora, slots, out_TO)
    assert_close(lora_linear(x_TI, lora, on_device(slots, "cpu"), out_TO).float(), expected, dtype)


def main(library: Path) -> None:
    torch.manual_seed(0)
    for isa in built_isas():
        if use_library(library, isa) != isa:
            continue
        for dtype in (torch.float32, torch.bfloat16):
            for shape in SHAPES:
                attend(shape, dtype)
                store(shape, dtype)
            for latents in (LatentShape(5, 40, 6, 4), LatentShape(20, 64, 8, 16)):
                attend_latents(latents, dtype)
            for encoder_shape in encoder_cases.SHAPES:
                attend_whole(encoder_shape, dtype)
            for shape in (SHAPES[0], SHAPES[4]):
                attend_codes(shape, dtype)
            attend(SHAPES[0], dtype, **OPTIONS["all"])
            attend_codes(SHAPES[0], dtype, **OPTIONS["all"])
            for size in (1, 7, 33, 4097):
                compute(size, dtype)
                replay(size, dtype)
            for num_tokens, num_inputs in ((1, 32), (17, 64), (70, 288), (300, 32), (3, 1120)):
                multiply(num_tokens, num_inputs, dtype)
            for num_tokens in (1, 3, 90):
                route(num_tokens, dtype)
            for num_heads, value_size, state_size in ((3, 7, 5), (4, 64, 128), (8, 33, 256)):
                scan(num_heads, value_size, state_size, dtype)
            for sizes in ((1, 1, 5, 32), (4, 2, 33, 128), (16, 16, 256, 256)):
                correct(*sizes, dtype)
            for num_inputs, sizes in ((1, (1,)), (37, (300, 7)), (64, (32, 16, 17))):
                add_updates(num_inputs, sizes, dtype)
            for num_tokens in (1, 3, 20):
                multiply_blocks(num_tokens, dtype)
        print(isa, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
