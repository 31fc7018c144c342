import pytest
import torch

from kernels.norm_linear import norm_linear
from tests.kernels.cases import assert_close
from tests.kernels.norm_linear_cases import make_arguments


@pytest.mark.parametrize("is_gated", [False, True])
@pytest.mark.parametrize("has_update", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equals_the_formula(dtype: torch.dtype, has_update: bool, is_gated: bool) -> None:
    arguments = make_arguments(5, 48, 34, dtype, "cpu", has_update, has_bias=True, is_gated=is_gated)
    x, update, norm_weight, eps, weight, bias, _ = arguments
    before = x.clone()
    residual, out = norm_linear(*arguments)
    assert torch.equal(x, before)
    assert torch.equal(residual, x if update is None else x + update)
    assert bias is not None
    wide = residual.double()
    normed = wide / (wide.square().mean(-1, keepdim=True) + eps).sqrt() * norm_weight.double()
    expected = normed @ weight.double().T + bias.double()
    if is_gated:
        gate, up = expected.chunk(2, dim=-1)
        expected = gate / (1 + (-gate).exp()) * up
    assert_close(out, expected, dtype)


def test_more_tokens_or_float16_are_refused() -> None:
    """The decoder takes the single operations there."""
    for num_tokens, dtype in ((17, torch.float32), (1, torch.float16)):
        with pytest.raises(AssertionError):
            norm_linear(*make_arguments(num_tokens, 16, 16, dtype, "cpu"))
