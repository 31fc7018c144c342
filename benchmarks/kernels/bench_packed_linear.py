"""Linear layers of packed weights beside oneDNN's, the layers of GPT-2 124M.

python -m benchmarks.kernels.bench_packed_linear [--threads N] [--quick] [--json FILE]

They are float32 and, where oneDNN multiplies it, bfloat16.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from functools import partial

import torch

from benchmarks.kernels.bench_quantized_linear import COPIED_BYTES, SHAPES, TOKENS, take_turns
from benchmarks.kernels.measure import Row, finish, median_ms, product_rate, read_bandwidth, start
from kernels.formats.packed import PackedWeight
from kernels.formats.plain import on_onednn, onednn_has_bfloat16
from kernels.formats.weight_format import Linear
from kernels.operations.packed_linear import has_packed_kernel, pack


def main() -> int:
    options = start(__doc__, devices=("cpu",))
    rows: list[Row] = []
    limits = {"read GB/s": read_bandwidth(options.rounds)}
    for dtype in (torch.bfloat16, torch.float32) if onednn_has_bfloat16() else (torch.float32,):
        dtype_name = str(dtype).removeprefix("torch.")
        for name, sizes in list(SHAPES.items())[: 1 if options.quick else None]:
            weight = torch.randn(sizes[::-1]).to(dtype)
            if not has_packed_kernel(weight):
                print(f"bench_packed_linear: there is no kernel for {dtype_name} on this processor", file=sys.stderr)
                return 1
            rows += compare(f"{dtype_name} {name}", weight, options)
        limits[f"{dtype_name} product GFLOP/s"] = product_rate(options.rounds, dtype=dtype)
    finish(options, "packed_linear", rows, limits)
    return 0


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


if __name__ == "__main__":
    raise SystemExit(main())
