import pytest
import torch

from kernels.operations.rescale import rescale
from tests.kernels.cases import DEVICES, assert_close
from tests.kernels.each_case import each_case


@pytest.mark.parametrize("device", DEVICES)
@each_case("dtype", [torch.float32, torch.bfloat16, torch.float16])
@each_case("size", [1, 13, 384])
def test_equals_the_formulas_in_place(dtype: torch.dtype, size: int, device: str) -> None:
    x, added = (torch.randn(2, 3, size, device=device) * 4).to(dtype)
    for options, expected in (
        ({"factor": 1.5}, x.double() * 1.5),
        ({"added_TE": added}, x.double() + added.double()),
        ({"softcap": 3.0}, (x.double() / 3).tanh() * 3),
        ({"factor": 0.25, "softcap": 3.0}, (x.double() / 12).tanh() * 3),
    ):
        changed = x.clone()
        assert rescale(changed, **options) is changed
        assert_close(changed, expected, dtype)


def test_refuses_another_shape_and_an_addition_with_a_cap() -> None:
    with pytest.raises(AssertionError):
        rescale(torch.ones(2, 3), added_TE=torch.ones(1, 3))
    with pytest.raises(AssertionError):
        rescale(torch.ones(2, 3), added_TE=torch.ones(2, 3), softcap=1.0)
