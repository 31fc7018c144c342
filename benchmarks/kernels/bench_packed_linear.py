"""Linear layers of packed weights beside the library's, the layers of GPT-2 124M.

python -m benchmarks.kernels.bench_packed_linear [--threads N] [--quick] [--json FILE]

With AVX512-BF16 or AMX they are bfloat16, beside oneDNN; with AVX2 alone float32, beside torch.
"""

import sys
from functools import partial

import torch
from torch.nn import functional

from benchmarks.kernels.bench_quantized_linear import COPIED_BYTES, SHAPES, TOKENS, take_turns
from benchmarks.kernels.measure import Row, finish, median_ms, product_rate, read_bandwidth, start
from kernels.packed_linear import has_packed_kernel
from scheduler_proc.computing.model.linear import Linear, make_linear, on_onednn, onednn_has_bfloat16


def main() -> int:
    options = start(__doc__, devices=("cpu",))
    is_bfloat16 = onednn_has_bfloat16()
    dtype = torch.bfloat16 if is_bfloat16 else torch.float32
    rows: list[Row] = []
    for name, (num_inputs, num_outputs) in list(SHAPES.items())[: 1 if options.quick else None]:
        weight = torch.randn(num_outputs, num_inputs).to(dtype)
        if not has_packed_kernel(weight):
            print(f"bench_packed_linear: there is no kernel for {dtype} on this processor", file=sys.stderr)
            return 1
        num_copies = max(1, COPIED_BYTES // weight.nbytes)
        makes = {"ours": make_linear, "library": on_onednn if is_bfloat16 else _on_torch}
        calls = {
            form: take_turns([make(weight.clone(), None) for _ in range(num_copies)]) for form, make in makes.items()
        }
        for num_tokens in TOKENS[: 1 if options.quick else None]:
            x_TI = torch.randn(num_tokens, num_inputs).to(dtype)
            times = median_ms({form: partial(call, x_TI) for form, call in calls.items()}, options.rounds)
            row: Row = {"case": f"{name}, {num_tokens} tokens"}
            row |= {f"{form} ms": ms for form, ms in times.items()}
            row |= {"ours GB/s": weight.nbytes / times["ours"] / 1e6, "ours times": times["library"] / times["ours"]}
            rows.append(row)
    limits = {"read GB/s": read_bandwidth(options.rounds), "product GFLOP/s": product_rate(options.rounds)}
    finish(options, "packed_linear", rows, limits)
    return 0


def _on_torch(weight_OI: torch.Tensor, bias_O: torch.Tensor | None) -> Linear:
    return lambda x_TI, _=None: functional.linear(x_TI, weight_OI, bias_O)


if __name__ == "__main__":
    raise SystemExit(main())
