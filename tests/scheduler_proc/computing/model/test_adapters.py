"""Slots of adapters under linears of every format of weights.

Shape legend: T tokens, I inputs, O outputs.
"""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernels.arguments.block_forms import GGUF_FORMS
from kernels.arguments.block_rows import Segment
from kernels.cpu.library import unload_kernels, use_library
from kernels.formats.packed import PACKED
from kernels.formats.plain import PLAIN
from kernels.formats.registry import QUANTIZING, find_block_format
from kernels.formats.weight_format import Rows, Weight
from kernels.operations.packed_linear import has_packed_kernel
from scheduler_proc.computing.model.adapters import AdapterSlots, HostAdapter, LinearPlan, LowRank
from scheduler_proc.computing.model.blocks.weights import Weights, pop_linear
from scheduler_proc.computing.placement import Placement
from scheduler_proc.computing.step.features.adapters import ADAPTERS
from scheduler_proc.computing.step.rows import StepRows
from tests.gguf_models import small_blocks
from tests.kernels.c_library import built_library
from tests.kernels.cases import assert_close

CPU, NUM_INPUTS, ENDS = torch.device("cpu"), 256, (64, 96, 128)
SLOTS = [1, -1, 0, 1, 2]


@pytest.fixture(autouse=True)
def kernels() -> Iterator[None]:
    use_library(built_library())
    yield
    unload_kernels()


def make_weight(name: str, dtype: torch.dtype) -> Weight:
    values = torch.randn(ENDS[-1], NUM_INPUTS).to(dtype) * 0.1
    if name in QUANTIZING:
        return QUANTIZING[name].quantize(values)
    rows: Rows = values
    weight_format: Any = {"plain": PLAIN, "packed": PACKED}.get(name)
    if weight_format is None:
        rows = small_blocks(name, ENDS[-1], NUM_INPUTS, seed=3)
        weight_format = find_block_format((Segment(name, ENDS[-1]),), dtype, CPU)
    if weight_format is None:
        pytest.skip(f"no kernel of this processor computes in {name}")
    weight = weight_format.allocate((ENDS[-1], NUM_INPUTS), dtype, CPU)
    weight.set_rows(0, rows)
    return weight.finish()


def make_update(rank: int, num_outputs: int, dtype: torch.dtype) -> LowRank:
    return LowRank(torch.randn(rank, NUM_INPUTS).to(dtype) * 0.1, torch.randn(rank, num_outputs).to(dtype), 0.7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["plain", "packed", *QUANTIZING, *GGUF_FORMS])
@pytest.mark.parametrize("activation", [None, "tanh"])
def test_updates_are_added_to_the_outputs_of_any_weight(name: str, dtype: torch.dtype, activation: Any) -> None:
    """Also before an activation that the weight's kernel computes; inputs are not quantized for them."""
    if name == "packed" and not has_packed_kernel(torch.empty(0, 0, dtype=dtype)):
        pytest.skip("packed weights need vectors")
    weight = make_weight(name, dtype)
    weights: Weights = {"linear.weight": weight}
    linear, plain = pop_linear(weights, "linear", activation), weight.linear(None, None)
    slots = AdapterSlots({"linear": LinearPlan(NUM_INPUTS, ENDS)}, 3, 8, Placement(CPU, dtype))
    first, second = make_update(8, 64, dtype), make_update(3, 32, dtype)
    slots.place(1, HostAdapter("", 8, {"linear": [make_update(8, 64, dtype), None, second]}))
    slots.place(1, HostAdapter("", 8, {"linear": [first, second, None]}))
    slots.place(2, HostAdapter("", 8, {}))
    x_TI = torch.randn(len(SLOTS), NUM_INPUTS).to(dtype)
    step: Any = SimpleNamespace(view={ADAPTERS: torch.tensor(SLOTS, dtype=torch.int32)}.get)
    expected = plain(x_TI).float()
    for token in (0, 3):
        for update, begin, end in ((first, 0, 64), (second, 64, 96)):
            expected[token, begin:end] += 0.7 * (x_TI[token].float() @ update.a.float().T) @ update.b.float()
    if activation is not None:
        expected = torch.nn.functional.gelu(expected, approximate="tanh")
    assert_close(linear(x_TI, StepRows(step, lora=slots.linears)).float(), expected, dtype)
    assert torch.equal(linear(x_TI, StepRows(step)), weight.linear(None, activation)(x_TI))
