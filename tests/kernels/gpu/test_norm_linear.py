from collections import Counter

import pytest
import torch

from kernels.norm_linear import norm_linear, norm_linear_reference
from tests.kernels.cases import TOLERANCES, assert_close
from tests.kernels.norm_linear_cases import make_arguments


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("num_tokens", "num_inputs", "num_outputs", "has_update", "has_bias", "is_gated"),
    [
        (1, 48, 16, True, False, False),
        (16, 128, 34, True, True, False),
        (3, 200, 66, True, True, True),
        (2, 300, 20, False, False, True),
        (0, 16, 16, True, False, False),
    ],
)
def test_equals_its_reference(
    num_tokens: int,
    num_inputs: int,
    num_outputs: int,
    has_update: bool,
    has_bias: bool,
    is_gated: bool,
    dtype: torch.dtype,
    device: str,
    backend: Counter[str],
) -> None:
    """Sizes that end amid blocks, and several blocks of inputs and outputs."""
    arguments = make_arguments(num_tokens, num_inputs, num_outputs, dtype, device, has_update, has_bias, is_gated)
    before = arguments[0].clone()
    expected_residual, expected = norm_linear_reference(*arguments)
    residual, out = norm_linear(*arguments)
    assert backend["norm_linear"] == 1
    assert torch.equal(arguments[0], before), "other programs may still have to read it"
    assert torch.equal(residual, expected_residual)
    assert_close(out, expected, dtype)


def test_a_stream_of_large_numbers_is_normed_as_well(device: str) -> None:
    """The norm's factor comes behind the product, so products are of what may be large."""
    x, update, *others = make_arguments(2, 64, 16, torch.bfloat16, device)
    large = x * 3e4, None if update is None else update * 3e4, *others
    _, expected = norm_linear_reference(*large)
    _, out = norm_linear(*large)
    torch.testing.assert_close(out, expected, rtol=TOLERANCES[torch.bfloat16], atol=TOLERANCES[torch.bfloat16])
