"""Products of float32 have the precision that a kernel asks for: in the interpreter because it is patched, on a GPU by
itself."""

import pytest
import torch
from torch import Tensor

triton = pytest.importorskip("triton")
tl = triton.language

SIZE = 64


@triton.jit
def product_kernel(x_ptr, y_ptr, out_ptr, SIZE: tl.constexpr, PRECISION: tl.constexpr):
    columns = tl.arange(0, SIZE)
    places = columns[:, None] * SIZE + columns[None, :]
    product = tl.dot(tl.load(x_ptr + places), tl.load(y_ptr + places), input_precision=PRECISION)
    tl.store(out_ptr + places, product)


def multiply(x: Tensor, y: Tensor, precision: str, device: str) -> Tensor:
    out = torch.empty(SIZE, SIZE, device=device)
    product_kernel[(1,)](x.to(device), y.to(device), out, SIZE=SIZE, PRECISION=precision)
    return out.cpu()


@pytest.mark.parametrize(
    ("precision", "least", "most"),
    [("ieee", 0, 2e-7), ("tf32x3", 0, 5e-7), ("bf16x3", 2e-7, 5e-5), ("tf32", 1e-4, 2e-3)],
)
def test_the_error_of_a_product_is_that_of_its_precision(
    precision: str, least: float, most: float, device: str
) -> None:
    """Errors are relative to the sum of the products' magnitudes."""
    x, y = torch.randn(2, SIZE, SIZE, generator=torch.Generator().manual_seed(3))
    error = (multiply(x, y, precision, device).double() - x.double() @ y.double()).abs()
    relative = float((error / (x.abs().double() @ y.abs().double())).max())
    assert least <= relative <= most


def test_what_is_not_finite_stays_so(device: str) -> None:
    x, y = torch.ones(SIZE, SIZE), torch.ones(SIZE, SIZE)
    x[1, 2], x[3, 4] = float("inf"), float("nan")
    out = multiply(x, y, "tf32x3", device)
    assert bool((out[1] == float("inf")).all())
    assert bool(out[3].isnan().all())
    assert torch.equal(out[5:], torch.full_like(out[5:], SIZE))
