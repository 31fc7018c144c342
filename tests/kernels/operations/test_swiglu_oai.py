import pytest
import torch
import transformers
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts

from kernels.operations.swiglu_oai import swiglu_oai
from tests.kernels.cases import DEVICES, assert_close
from tests.kernels.each_case import each_case


@pytest.mark.parametrize("device", DEVICES)
@each_case("dtype", [torch.float32, torch.bfloat16, torch.float16])
@each_case("size", [1, 13, 384])
def test_is_the_gate_of_transformers(dtype: torch.dtype, size: int, device: str) -> None:
    gate_up = (6 * torch.randn(3, 2 * size, device=device)).to(dtype)
    config = transformers.GptOssConfig(num_local_experts=1, hidden_size=1, intermediate_size=size)
    interleaved = gate_up.double().unflatten(1, (2, -1)).transpose(1, 2).flatten(1)
    expected = GptOssExperts(config)._apply_gate(interleaved)  # pyright: ignore[reportPrivateUsage]
    assert_close(swiglu_oai(gate_up, 1.702, 7.0), expected, dtype)


def test_nan_and_infinities() -> None:
    numbers = torch.tensor([float("nan"), float("inf"), -1e30, 1e30, 0.0])
    gate_up = torch.cartesian_prod(numbers, numbers).T.reshape(1, -1).contiguous()
    out = swiglu_oai(gate_up, 1.702, 7.0)
    assert torch.equal(out.isnan(), gate_up.unflatten(1, (2, -1)).isnan().any(1))
    assert float(out.nan_to_num().abs().max()) < 57
