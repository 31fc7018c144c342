"""Linear layers of GPT-2 124M on a CPU (packed, int8, int4), and the device's rates of copies and products."""

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
from kernels.arguments.codes import Bits
from kernels.cpu.huge_pages import empty_huge
from kernels.formats.packed import PackedWeight
from kernels.formats.plain import PlainWeight, on_onednn, onednn_has_bfloat16
from kernels.formats.quantized import QUANTIZED
from kernels.formats.weight_format import Linear, Weight
from kernels.operations.packed_linear import has_packed_kernel, pack

SHAPES = {"768 to 2304": (768, 2304), "3072 to 768": (3072, 768), "768 to 50257": (768, 50257)}
BITS: list[Bits] = [8, 4]
TOKENS = (1, 4, 16, 64, 512)
COPIED_BYTES = 128 << 20
"""Total size of a weight's copies: large enough that no cache keeps a copy until its next call."""


def make_calls(num_inputs: int, num_outputs: int) -> dict[str, Callable[[Tensor], Tensor]]:
    """Returns a linear layer per format; each call uses the next of several copies of the weight."""
    weight = torch.randn(num_outputs, num_inputs).bfloat16()
    num_copies = max(1, COPIED_BYTES // weight.nbytes)
    plain = PackedWeight(pack(weight), num_outputs) if has_packed_kernel(weight) else PlainWeight(weight)
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
        "ours": lambda copy: PackedWeight(pack(copy), len(copy)).linear(None, None),
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


BENCHMARKS = {
    "limits": of_operation("the device's own limits: copies and products by torch", LIMIT_CASES, make_limit),
    "packed_linear": Benchmark("packed weights and oneDNN's, in float32 and bfloat16", measure_packed, ("cpu",)),
    "quantized_linear": Benchmark("int8 and int4 weights and bfloat16's", measure_quantized, ("cpu",)),
}
