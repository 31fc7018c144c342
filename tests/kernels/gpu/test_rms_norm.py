from collections import Counter

import pytest
import torch

from kernels.operations.rms_norm import rms_norm, rms_norm_reference
from tests.kernels.cases import assert_close

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("has_update", [False, True])
@pytest.mark.parametrize("size", [1, 7, 128, 769])
def test_equals_its_reference(
    size: int, has_update: bool, dtype: torch.dtype, device: str, backend: Counter[str]
) -> None:
    generator = torch.Generator().manual_seed(size)
    x, update = torch.randn(2, 3, size, generator=generator).to(dtype).to(device)
    weight = torch.randn(size, generator=generator).to(dtype).to(device)
    expected_x = x.clone()
    expected = rms_norm_reference(expected_x, weight, 1e-5, update if has_update else None)
    out = rms_norm(x, weight, 1e-5, update if has_update else None)
    assert backend["rms_norm"] == 1
    assert_close(out, expected, dtype)
    assert torch.equal(x, expected_x)


def test_a_sum_beyond_float16_does_not_overflow(device: str) -> None:
    x = torch.full((1, 64), 300.0, dtype=torch.float16, device=device)
    ones = torch.ones(64, dtype=torch.float16, device=device)
    assert_close(rms_norm(x, ones, 1e-6), ones[None], torch.float16)


def test_no_rows_give_no_rows(device: str) -> None:
    nothing = torch.empty(0, 8, device=device)
    assert rms_norm(nothing, torch.ones(8, device=device), 1e-6, nothing).shape == (0, 8)
