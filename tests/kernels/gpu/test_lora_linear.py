from collections import Counter

import pytest
import torch

from kernels.operations.lora_linear import lora_linear
from tests.kernels.cases import assert_close
from tests.kernels.lora_cases import expect, make_slots, on_device


@pytest.mark.parametrize(
    ("num_inputs", "sizes", "max_rank", "dtype"),
    [
        (64, (32, 16, 16), 20, torch.float32),
        (300, (130, 7), 64, torch.bfloat16),
        (17, (1,), 20, torch.float16),
    ],
)
@pytest.mark.parametrize("num_more", [0, 140], ids=["few tokens", "many tokens"])
def test_adds_each_tokens_update(
    num_inputs: int,
    sizes: tuple[int, ...],
    max_rank: int,
    dtype: torch.dtype,
    num_more: int,
    device: str,
    backend: Counter[str],
) -> None:
    slots = [3, -1, 0, 2, 2, 3, 1, 0] + [2] * num_more
    lora = make_slots(num_inputs, sizes, dtype, device, max_rank)
    x_TI = torch.randn(len(slots), num_inputs).to(device, dtype)
    out_TO = torch.randn(len(slots), sum(sizes)).to(device, dtype)
    before, expected = out_TO.clone(), expect(x_TI, lora, slots, out_TO)
    lora_linear(x_TI, lora, on_device(slots, device), out_TO)
    assert backend["lora_linear"] == 1
    assert_close(out_TO.float(), expected.to(device), dtype)
    assert torch.equal(out_TO[[1, 6]], before[[1, 6]])


def test_no_tokens(device: str) -> None:
    lora = make_slots(8, (4,), torch.float32, device)
    out = lora_linear(torch.empty(0, 8, device=device), lora, on_device([], device), torch.empty(0, 4, device=device))
    assert out.shape == (0, 4)
