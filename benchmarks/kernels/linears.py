"""Linear layers of GPT-2 124M on a CPU (packed, int8, int4), experts, and the device's rates of copies and products."""

import argparse
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from benchmarks.kernels.measure import (
    Benchmark,
    Findings,
    Row,
    Work,
    median_ms,
    of_operation,
    product_rate,
    read_bandwidth,
)
from kernels.arguments.block_forms import FORMS
from kernels.arguments.block_rows import Segment
from kernels.arguments.routes import Routing
from kernels.cpu.huge_pages import empty_huge
from kernels.formats.packed import PackedWeight
from kernels.formats.plain import PlainWeight, on_onednn, onednn_has_bfloat16
from kernels.formats.quantized import FP8, QUANTIZED
from kernels.formats.registry import find_block_format
from kernels.formats.weight_format import Linear, Weight
from kernels.operations.experts import combine_experts, gather_rows, route_tokens
from kernels.operations.packed_linear import has_packed_kernel, pack
from kernels.operations.planes_linear import planes_linear
from kernels.operations.quantize import Bits
from kernels.operations.quantize_rows import quantize_rows
from kernels.operations.scaled_linear import scaled_linear
from kernels.operations.silu_mul import silu_mul
from tests.kernels.gpu.plausible_blocks import plausible_rows

SHAPES = {"768 to 2304": (768, 2304), "3072 to 768": (3072, 768), "768 to 50257": (768, 50257)}
BITS: list[Bits] = [8, 4]
TOKENS = (1, 4, 16, 64, 512)
COPIED_BYTES = 128 << 20
"""Total size of a weight's copies: large enough that no cache keeps a copy until its next call."""


def make_calls(num_inputs: int, num_outputs: int) -> dict[str, Callable[[Tensor], Tensor]]:
    """Returns a linear layer per format; each call uses the next of several copies of the weight."""
    weight = torch.randn(num_outputs, num_inputs).bfloat16()
    num_copies = max(1, COPIED_BYTES // weight.nbytes)
    plain = PackedWeight(pack(weight), num_outputs, num_inputs) if has_packed_kernel(weight) else PlainWeight(weight)
    calls = {"bfloat16": take_turns([copy_of(plain).linear(None, None) for _ in range(num_copies)])}
    for bits in BITS:
        quantized = QUANTIZED[bits].quantize(weight)
        copies = [copy_of(quantized).linear(None, None) for _ in range(num_copies * 16 // bits)]
        calls[f"int{bits}"] = take_turns(copies)
    return calls


def copy_of(weight: Weight) -> Weight:
    stored = empty_huge(tuple(weight.stored.shape), weight.stored.dtype).copy_(weight.stored)
    return weight.format.restore(stored, weight.numbers)


def take_turns(layers: Sequence[Linear]) -> Callable[[Tensor], Tensor]:
    turns = itertools.cycle(layers)

    def call(x_TI: Tensor) -> Tensor:
        layer = next(turns)
        return layer(x_TI)

    return call


def measure_quantized(options: argparse.Namespace) -> Findings:
    rows: list[Row] = []
    for name, (num_inputs, num_outputs) in list(SHAPES.items())[: 1 if options.quick else None]:
        calls = make_calls(num_inputs, num_outputs)
        for num_tokens in TOKENS[: 1 if options.quick else None]:
            x_TI = torch.randn(num_tokens, num_inputs).bfloat16()
            times = median_ms({form: partial(call, x_TI) for form, call in calls.items()}, options.rounds)
            row: Row = {"case": f"{name}, {num_tokens} tokens"}
            row |= {f"{form} ms": ms for form, ms in times.items()}
            row |= {f"{form} times": times["bfloat16"] / times[form] for form in ("int8", "int4")}
            rows.append(row)
    limits = {"read GB/s": read_bandwidth(options.rounds), "product GFLOP/s": product_rate(options.rounds)}
    return rows, limits


def measure_packed(options: argparse.Namespace) -> Findings:
    rows: list[Row] = []
    limits = {"read GB/s": read_bandwidth(options.rounds)}
    for dtype in (torch.bfloat16, torch.float32) if onednn_has_bfloat16() else (torch.float32,):
        dtype_name = str(dtype).removeprefix("torch.")
        for name, sizes in list(SHAPES.items())[: 1 if options.quick else None]:
            weight = torch.randn(sizes[::-1]).to(dtype)
            if not has_packed_kernel(weight):
                raise SystemExit(f"packed_linear: no kernel for {dtype_name} on this processor")
            rows += compare(f"{dtype_name} {name}", weight, options)
        limits[f"{dtype_name} product GFLOP/s"] = product_rate(options.rounds, dtype=dtype)
    return rows, limits


def compare(name: str, weight: torch.Tensor, options: argparse.Namespace) -> Iterator[Row]:
    """Yields a row for each number of tokens."""
    num_copies = max(1, COPIED_BYTES // weight.nbytes)
    makes: dict[str, Callable[[torch.Tensor], Linear]] = {
        "ours": lambda copy: PackedWeight(pack(copy), *copy.shape).linear(None, None),
        "library": lambda copy: on_onednn(copy, None),
    }
    calls = {form: take_turns([make(weight.clone()) for _ in range(num_copies)]) for form, make in makes.items()}
    for num_tokens in TOKENS[: 1 if options.quick else None]:
        x_TI = torch.randn(num_tokens, weight.shape[1]).to(weight.dtype)
        times = median_ms({form: partial(call, x_TI) for form, call in calls.items()}, options.rounds)
        yield {
            "case": f"{name}, {num_tokens} tokens",
            **{f"{form} ms": ms for form, ms in times.items()},
            "ours GB/s": weight.nbytes / times["ours"] / 1e6,
            "ours times": times["library"] / times["ours"],
        }


@dataclass(frozen=True)
class Size:
    """The size of a copy in MiB, or of a product M x K by K x N."""

    copy_mib: int = 0
    product: tuple[int, int, int] = (0, 0, 0)


def sizes(copies: tuple[int, ...], products: tuple[tuple[int, int, int], ...]) -> dict[str, Size]:
    named = {f"copy, {mib} MiB": Size(copy_mib=mib) for mib in copies}
    return named | {f"product, {m} x {k} x {n}": Size(product=(m, k, n)) for m, k, n in products}


LIMIT_CASES = {
    "cpu": sizes((64, 256), ((1, 1024, 4096), (64, 1024, 4096), (1536, 1536, 1536))),
    "cuda": sizes(
        (64, 512, 2048, 8192),
        (
            (1, 1024, 6144),
            (256, 1024, 6144),
            (1, 4096, 28672),
            (256, 4096, 28672),
            (4096, 4096, 4096),
            (8192, 8192, 8192),
        ),
    ),
}


def make_limit(size: Size, device: torch.device) -> Work:
    if size.copy_mib:
        source = torch.ones(size.copy_mib << 20, dtype=torch.uint8, device=device)
        target = torch.empty_like(source)
        return Work({"torch": lambda: target.copy_(source)}, 2 * source.nbytes)
    rows, inner, columns = size.product
    x = torch.randn(rows, inner, device=device).bfloat16()
    weight = torch.randn(columns, inner, device=device).bfloat16()
    num_bytes = 2 * (rows * inner + inner * columns + rows * columns)
    return Work({"torch": lambda: x @ weight.T}, num_bytes, 2 * rows * inner * columns)


@dataclass(frozen=True)
class ExpertCase:
    """The experts of a layer of Qwen3-30B-A3B; `form` is that of GGUF's blocks, int8, or bfloat16."""

    num_tokens: int
    form: str
    num_experts: int = 128
    num_chosen: int = 8
    hidden_size: int = 2048
    size: int = 768


NUM_ROUTES = 8
"""Calls take turns with these: no cache keeps the experts until they are chosen again."""
EXPERT_TOKENS = {"cpu": (1, 4, 16, 256), "cuda": (1, 4, 16, 64, 256, 2048, 8192)}
EXPERT_FORMS = {"cpu": ("bfloat16", "int8", "Q4_K", "Q8_0"), "cuda": ("bfloat16", "Q4_K", "MXFP4")}


def make_expert_weight(case: ExpertCase, num_outputs: int, num_inputs: int, device: torch.device) -> Weight:
    num_rows = case.num_experts * num_outputs
    if case.form in FORMS:
        block_format = find_block_format([Segment(case.form, num_rows)], torch.bfloat16, device)
        assert block_format is not None
        weight = block_format.allocate((num_rows, num_inputs), torch.bfloat16, device)
        rows = plausible_rows(case.form, num_outputs, num_inputs)
        for expert in range(case.num_experts):
            weight.set_rows(expert * num_outputs, rows)
        return weight.finish()
    values = torch.randn(num_rows, num_inputs, device=device, dtype=torch.bfloat16) / num_inputs**0.5
    if case.form == "int8":
        return QUANTIZED[8].quantize(values)
    return PackedWeight(pack(values), num_rows, num_inputs) if has_packed_kernel(values) else PlainWeight(values)


def make_experts(case: ExpertCase, device: torch.device) -> Work:
    """The products of a layer's experts and what is around them: routes, rows, activation and sum."""
    weights = [
        make_expert_weight(case, *sizes, device)
        for sizes in ((2 * case.size, case.hidden_size), (case.hidden_size, case.size))
    ]
    into, out = (weight.experts(None) for weight in weights)
    x = torch.randn(case.num_tokens, case.hidden_size, device=device).bfloat16()
    routing = Routing(num_chosen=case.num_chosen, is_renormalized=True)
    logits = torch.randn(NUM_ROUTES, case.num_tokens, case.num_experts, device=device).bfloat16()
    turns = itertools.cycle(logits)

    def compute() -> Tensor:
        routes = route_tokens(next(turns), routing)
        inner = silu_mul(into(gather_rows(x, routes), routes, None))
        return combine_experts(out(inner, routes, None), routes)

    num_used = [len(of_step.topk(case.num_chosen).indices.unique()) for of_step in logits]
    share = sum(num_used) / NUM_ROUTES / case.num_experts
    num_products = 6 * case.num_tokens * case.num_chosen * case.hidden_size * case.size
    num_bytes = int(share * sum(weight.stored.nbytes for weight in weights))
    return Work({"experts": compute}, num_bytes, num_products if case.num_tokens > MANY_TOKENS else 0)


MANY_TOKENS = 256
"""With more of them experts are bound by their products."""

EXPERT_CASES = {
    device: {
        f"{form}, {num} tokens": ExpertCase(num, form) for form in EXPERT_FORMS[device] for num in EXPERT_TOKENS[device]
    }
    for device in EXPERT_FORMS
}


@dataclass(frozen=True)
class ScaledCase:
    """A linear layer of Llama-3-8B."""

    num_tokens: int
    num_inputs: int
    num_outputs: int


SCALED_SIZES = {"gate and up": (4096, 28672), "output": (4096, 4096)}
SCALED_TOKENS = (1, 8, 64, 65, 256, 2048, 8192)


def make_scaled(case: ScaledCase, device: torch.device) -> Work:
    """A weight in fp8: multiplied by codes, by 16 bits, by torch's own product of codes, and in bfloat16 itself."""
    values = torch.randn(case.num_outputs, case.num_inputs, device=device, dtype=torch.bfloat16) / case.num_inputs**0.5
    x = torch.randn(case.num_tokens, case.num_inputs, device=device).bfloat16()
    (planes,), out = FP8.quantize(values).parts, x.new_empty(case.num_tokens, case.num_outputs)

    def by_torch() -> Tensor:
        codes, scales = quantize_rows(x, planes.low.shape[1])
        by_output = planes.scales[:1].contiguous()
        return torch.ops.aten._scaled_mm(codes, planes.low.T, scales[:, None], by_output, out_dtype=torch.bfloat16)

    forms: dict[str, Callable[[], object]] = {
        "codes": lambda: scaled_linear(x, planes, None, out),
        "widened": lambda: planes_linear(x, planes, None, out),
        "bfloat16": lambda: torch.mm(x, values.T, out=out),
        "quantize": lambda: quantize_rows(x, planes.low.shape[1]),
    }
    if device.type == "cuda":
        forms["torch's"] = by_torch
    num_products = 2 * case.num_tokens * case.num_inputs * case.num_outputs
    return Work(forms, planes.low.nbytes, num_products if case.num_tokens > MANY_TOKENS else 0)


SCALED_CASES = {
    f"{name}, {num} tokens": ScaledCase(num, *sizes) for name, sizes in SCALED_SIZES.items() for num in SCALED_TOKENS
}

BENCHMARKS = {
    "experts": of_operation("a mixture of experts: routes, products and sums", EXPERT_CASES, make_experts),
    "limits": of_operation("the device's own limits: copies and products by torch", LIMIT_CASES, make_limit),
    "packed_linear": Benchmark("packed weights and oneDNN's, in float32 and bfloat16", measure_packed, ("cpu",)),
    "scaled_linear": of_operation(
        "fp8 weights by activations in fp8 and in 16 bits",
        {"cpu": {"1 token": ScaledCase(1, 512, 512)}, "cuda": SCALED_CASES},
        make_scaled,
    ),
    "quantized_linear": Benchmark("int8 and int4 weights and bfloat16's", measure_quantized, ("cpu",)),
}
