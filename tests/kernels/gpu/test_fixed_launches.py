"""With fixed launches a row's results are the same bits alone and in any batch, also beyond the count from which other
launches would serve.

Shape legend: T tokens, I inputs, O outputs; R rows of experts.
"""

from collections import Counter
from collections.abc import Iterator
from functools import partial

import pytest
import torch

from kernels.arguments.block_rows import BlockRows
from kernels.gpu import launch_table, planes_linear
from kernels.gpu.lora_linear import MANY_TOKENS
from kernels.operations import planes_linear as operation
from kernels.operations.expert_codes import planes_experts
from kernels.operations.expert_linear import ExpertLinear, plain_experts
from kernels.operations.lora_linear import lora_linear
from tests.kernels.gpu.plausible_blocks import make_planes, plausible_rows
from tests.kernels.gpu.test_expert_linear import routes_of
from tests.kernels.gpu.triton_in_use import triton_in_use
from tests.kernels.lora_cases import make_slots, on_device

BF16 = torch.bfloat16


@pytest.fixture(autouse=True)
def backend(backend: Counter[str]) -> Iterator[Counter[str]]:
    with triton_in_use(is_fixed=True) as taken:
        yield taken


@pytest.mark.parametrize("form", ["Q4_K", "Q6_K", "MXFP4", "I8_128", "F8_64"])
def test_weights_in_planes(form: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of many tokens do not fit into memory together: slices of 64 tokens."""
    rows = plausible_rows(form, 70, 512)
    planes = make_planes(BlockRows(rows.blocks.to(device), form, 512))
    monkeypatch.setattr(planes_linear, "SLICE_BYTES", 4)
    x_TI = torch.randn(planes_linear.MANY_TOKENS + 6, 512).to(device, BF16)
    expected = operation.planes_linear(x_TI, planes, None)
    for tokens in (slice(0, 1), slice(61, 70), slice(69, 70)):
        assert torch.equal(operation.planes_linear(x_TI[tokens], planes, None), expected[tokens])


@pytest.mark.parametrize("form", ["", "Q4_K"])
def test_experts(form: str, device: str) -> None:
    if form:
        rows = plausible_rows(form, 2 * 64, 256)
        experts: ExpertLinear = partial(planes_experts, make_planes(BlockRows(rows.blocks.to(device), form, 256)), None)
    else:
        experts = partial(plain_experts, torch.randn(2 * 64, 256).to(device, BF16), None)
    x_RI = torch.randn(40, 256).to(device, BF16)
    expected = experts(x_RI, routes_of([3, 37], device), None)
    for row, counts in ((2, [1, 0]), (39, [0, 1])):
        assert torch.equal(experts(x_RI[row : row + 1], routes_of(counts, device), None), expected[row : row + 1])


def test_adapters(device: str) -> None:
    lora, x_TI = make_slots(64, (32, 16, 16), BF16, device), torch.randn(MANY_TOKENS + 8, 64).to(device, BF16)
    slots = [3, 0, 2, 2, *[2] * (MANY_TOKENS + 4)]
    before = torch.randn(len(slots), 64).to(device, BF16)
    expected = lora_linear(x_TI, lora, on_device(slots, device), before.clone())
    for token in (0, 2, len(slots) - 1):
        one = slice(token, token + 1)
        out = lora_linear(x_TI[one], lora, on_device(slots[one], device), before[one].clone())
        assert torch.equal(out, expected[one])


def test_no_count_of_rows_chooses_a_launch() -> None:
    assert launch_table.is_many(1, 1000) == launch_table.is_many(1001, 1000)
    launch_table.fix_launches(False)
    assert launch_table.is_many(1, 1000) != launch_table.is_many(1001, 1000)
