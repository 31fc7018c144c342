"""bfloat16 is what torch makes of it: in the interpreter because it is patched, on a GPU by itself."""

import pytest
import torch

from tests.kernels.gpu.triton_in_use import DEVICE

triton = pytest.importorskip("triton")
tl = triton.language

SIZE = 64


@triton.jit
def arithmetic_kernel(x_ptr, y_ptr, out_ptr, SIZE: tl.constexpr):
    columns = tl.arange(0, SIZE)
    x = tl.load(x_ptr + columns)
    y = tl.load(y_ptr + columns)
    tl.store(out_ptr + columns, x + y)
    tl.store(out_ptr + SIZE + columns, x * y)
    tl.store(out_ptr + 2 * SIZE + columns, tl.where(x < y, x, -y))
    tl.store(out_ptr + 3 * SIZE + columns, tl.abs(x - y))
    tl.store(out_ptr + 4 * SIZE + columns, (x.to(tl.float32) * 1.01).to(tl.bfloat16))
    tl.store(out_ptr + 5 * SIZE + columns, (columns * 3).to(tl.bfloat16))
    tl.store(out_ptr + 6 * SIZE + columns, tl.maximum(x, y))
    tl.store(out_ptr + 7 * SIZE + columns, x.to(tl.float16).to(tl.bfloat16))


@triton.jit
def product_kernel(x_ptr, out_ptr, SIZE: tl.constexpr):
    columns = tl.arange(0, SIZE)
    x = tl.load(x_ptr + columns[:, None] * SIZE + columns[None, :])
    tl.store(out_ptr + columns[:, None] * SIZE + columns[None, :], tl.dot(x, x))


@triton.jit
def sum_kernel(x_ptr, out_ptr, SIZE: tl.constexpr):
    tl.store(out_ptr, tl.sum(tl.load(x_ptr + tl.arange(0, SIZE)), 0))


def test_arithmetic_is_that_of_torch(device: str) -> None:
    x, y = torch.randn(2, SIZE, generator=torch.Generator().manual_seed(3)).bfloat16()
    x[:3], y[:2] = torch.tensor([float("inf"), float("nan"), -0.0]), torch.tensor([1.0, 2.0])
    out = torch.empty(8, SIZE, dtype=torch.bfloat16, device=device)
    arithmetic_kernel[(1,)](x.to(device), y.to(device), out, SIZE=SIZE)
    expected = torch.stack(
        (
            x + y,
            x * y,
            torch.where(x < y, x, -y),
            (x - y).abs(),
            (x.float() * 1.01).bfloat16(),
            (torch.arange(SIZE) * 3).bfloat16(),
            torch.fmax(x, y),
            x.half().bfloat16(),
        )
    )
    assert torch.equal(out.cpu().nan_to_num(7.0)[:, 2:], expected.nan_to_num(7.0)[:, 2:])
    assert bool(out[:2, 1].isnan().all())
    assert bool(out[:2, 0].isinf().all())


def test_products_are_summed_in_float32(device: str) -> None:
    x = torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(3)).bfloat16()
    out = torch.empty(SIZE, SIZE, device=device)
    product_kernel[(1,)](x.to(device), out, SIZE=SIZE)
    torch.testing.assert_close(out.cpu(), x.float() @ x.float(), rtol=1e-5, atol=1e-4)


@pytest.mark.skipif(DEVICE != "cpu", reason="a GPU can, and loses digits")
def test_a_sum_of_bfloat16_is_refused() -> None:
    x, out = torch.ones(SIZE, dtype=torch.bfloat16), torch.empty(1, dtype=torch.bfloat16)
    with pytest.raises(Exception, match="reduce in float32"):
        sum_kernel[(1,)](x, out, SIZE=SIZE)
