"""What the device itself can do: copies and bfloat16 products over sizes, by torch's own calls.

python -m benchmarks.kernels.bench_limits [--device cpu|cuda] [--quick] [--json FILE]
"""

from dataclasses import dataclass

import torch

from benchmarks.kernels.measure import Work, run


@dataclass(frozen=True)
class Size:
    """Of a copy in MiB, or of a product M x K by K x N."""

    copy_mib: int = 0
    product: tuple[int, int, int] = (0, 0, 0)


def sizes(copies: tuple[int, ...], products: tuple[tuple[int, int, int], ...]) -> dict[str, Size]:
    named = {f"copy, {mib} MiB": Size(copy_mib=mib) for mib in copies}
    return named | {f"product, {m} x {k} x {n}": Size(product=(m, k, n)) for m, k, n in products}


CASES = {
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


def make(size: Size, device: torch.device) -> Work:
    if size.copy_mib:
        source = torch.ones(size.copy_mib << 20, dtype=torch.uint8, device=device)
        target = torch.empty_like(source)
        return Work({"torch": lambda: target.copy_(source)}, 2 * source.nbytes)
    rows, inner, columns = size.product
    x = torch.randn(rows, inner, device=device).bfloat16()
    weight = torch.randn(columns, inner, device=device).bfloat16()
    num_bytes = 2 * (rows * inner + inner * columns + rows * columns)
    return Work({"torch": lambda: x @ weight.T}, num_bytes, 2 * rows * inner * columns)


if __name__ == "__main__":
    raise SystemExit(run(__doc__, "limits", CASES, make))
