"""Linear layers of int8 and int4 weights beside bfloat16, the layers of GPT-2 124M.

python -m benchmarks.kernels.bench_quantized_linear [--threads N] [--quick] [--json FILE]
"""

import itertools
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from benchmarks.kernels.measure import Row, finish, median_ms, product_rate, read_bandwidth, start
from kernels.arguments.codes import Bits
from kernels.cpu.huge_pages import empty_huge
from kernels.formats.packed import PackedWeight
from kernels.formats.plain import PlainWeight
from kernels.formats.quantized import QUANTIZED
from kernels.formats.weight_format import Linear, Weight
from kernels.operations.packed_linear import has_packed_kernel, pack

SHAPES = {"768 to 2304": (768, 2304), "3072 to 768": (3072, 768), "768 to 50257": (768, 50257)}
BITS: list[Bits] = [8, 4]
TOKENS = (1, 4, 16, 64, 512)
COPIED_BYTES = 128 << 20
"""Weights are copied until the copies together have so many bytes, so that no cache holds them from call to call."""


def make_calls(num_inputs: int, num_outputs: int) -> dict[str, Callable[[Tensor], Tensor]]:
    """Returns what multiplies activations by one of several copies of a weight, the next each time, by format."""
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


def main() -> int:
    options = start(__doc__, devices=("cpu",))
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
    finish(options, "quantized_linear", rows, limits)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
