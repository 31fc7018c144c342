"""Shape legend: T tokens, I inputs, O outputs."""

import pytest
import torch

from kernels.cpu.capture import capture_calls
from kernels.operations.lora_linear import lora_linear
from tests.kernels.cases import DEVICES, assert_close
from tests.kernels.each_case import each_case
from tests.kernels.lora_cases import expect, make_slots, on_device

SLOTS = [3, -1, 0, 2, 2, 3, 1, 0, 3, 3, -1, 3, 3, 3, 3, 3, 2]


@pytest.mark.parametrize("device", DEVICES)
@each_case("dtype", [torch.float32, torch.bfloat16, torch.float16])
@each_case(("num_inputs", "sizes"), [(64, (32, 16, 16)), (37, (300, 7)), (1, (1,)), (130, (513,))])
def test_adds_each_tokens_update(num_inputs: int, sizes: tuple[int, ...], dtype: torch.dtype, device: str) -> None:
    """Tokens without an adapter, and of one that updates nothing, keep their outputs to the bit."""
    lora = make_slots(num_inputs, sizes, dtype, device)
    x, out = torch.randn(len(SLOTS), num_inputs), torch.randn(len(SLOTS), sum(sizes))
    x_TI, out_TO = x.to(device, dtype), out.to(device, dtype)
    before, expected = out_TO.clone(), expect(x_TI, lora, SLOTS, out_TO)
    assert lora_linear(x_TI, lora, on_device(SLOTS, device), out_TO) is out_TO
    assert_close(out_TO.float(), expected, dtype)
    same = [token for token, slot in enumerate(SLOTS) if slot in (-1, 1)]
    assert torch.equal(out_TO[same], before[same])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_token_has_the_same_bits_alone_and_in_any_batch(dtype: torch.dtype, backend: str) -> None:
    if backend == "torch":
        pytest.skip("torch chooses its products by the number of rows")
    slots = [3] * 150 + SLOTS
    lora = make_slots(70, (200, 61), dtype, "cpu")
    x_TI, out_TO = torch.randn(len(slots), 70).to(dtype), torch.randn(len(slots), 261).to(dtype)
    together = lora_linear(x_TI, lora, on_device(slots, "cpu"), out_TO.clone())
    for token in (0, 1, 63, 64, 149, *range(150, len(slots))):
        own = slice(token, token + 1)
        alone = lora_linear(x_TI[own], lora, on_device(slots[own], "cpu"), out_TO[own].clone())
        assert torch.equal(alone, together[own])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_captured_call_has_the_adapters_of_its_replay(dtype: torch.dtype, backend: str) -> None:
    if backend == "torch":
        pytest.skip("there are no calls of C kernels")
    lora, adapters = make_slots(64, (40, 24), dtype, "cpu"), on_device([0, -1, 2], "cpu")
    x_TI, out_TO = torch.randn(3, 64).to(dtype), torch.zeros(3, 64, dtype=dtype)
    _, calls, other = capture_calls(lambda: lora_linear(x_TI, lora, adapters, out_TO))
    assert calls is not None, other
    adapters.slots.copy_(torch.tensor([-1, 3, 3]))
    lora.scales[3, 0] = 0.25
    expected = expect(x_TI, lora, [-1, 3, 3], out_TO.zero_())
    calls.replay()
    assert_close(out_TO.float(), expected, dtype)


@pytest.mark.parametrize("device", DEVICES)
def test_no_tokens(device: str) -> None:
    lora = make_slots(8, (4,), torch.float32, device)
    out = lora_linear(torch.empty(0, 8, device=device), lora, on_device([], device), torch.empty(0, 4, device=device))
    assert out.shape == (0, 4)
