from collections import Counter

import pytest
import torch

from kernels.operations.layer_norm import layer_norm, layer_norm_reference
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
    weight, bias = torch.randn(2, size, generator=generator).to(dtype).to(device)
    expected_x = x.clone()
    expected = layer_norm_reference(expected_x, weight, bias, 1e-5, update if has_update else None)
    out = layer_norm(x, weight, bias, 1e-5, update if has_update else None)
    assert backend["layer_norm"] == 1
    assert_close(out, expected, dtype)
    assert torch.equal(x, expected_x)


def test_a_mean_that_is_large_takes_no_digits_from_the_variance(device: str) -> None:
    x = 1000 + torch.arange(48, device=device).float()[None] / 48
    ones = torch.ones(48, device=device)
    expected = layer_norm_reference(x.double(), ones.double(), ones.double(), 1e-5, None)
    torch.testing.assert_close(layer_norm(x, ones, ones, 1e-5).double(), expected, rtol=0, atol=2e-3)
