"""Programs side by side, against NVIDIA's calculator, and by what decode attention is compiled for."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernels.arguments.attention_options import AttentionOptions
from kernels.arguments.paged_kv import SCALE_DTYPE, PagedKV
from kernels.dispatch import count_programs
from kernels.gpu.launch_table import find_launch
from kernels.gpu.occupancy import Processor, count_side_by_side, processor_of
from kernels.operations.paged_decode import paged_decode
from kernels.plans.decode_work import UNCOMPILED, DecodeLayout, DecodeShape, DecodeWork, make_decode_scratch
from tests.kernels.gpu.triton_in_use import DEVICE

HOPPER = SimpleNamespace(
    major=9,
    minor=0,
    regs_per_multiprocessor=65536,
    shared_memory_per_multiprocessor=233472,
    max_threads_per_multi_processor=2048,
    multi_processor_count=132,
)


@pytest.mark.parametrize(
    ("registers", "shared_bytes", "num_warps", "expected"),
    [
        (72, 20992, 4, 7),
        (64, 20992, 4, 8),
        (112, 39424, 4, 4),
        (113, 39424, 4, 4),
        (128, 39424, 4, 4),
        (129, 39424, 4, 3),
        (158, 39424, 4, 3),
        (188, 82944, 4, 2),
        (32, 0, 4, 16),
        (16, 0, 1, 32),
        (40, 76 << 10, 4, 2),
        (255, 200 << 10, 8, 1),
        (255, 0, 16, 1),
    ],
)
def test_equals_the_calculator(registers: int, shared_bytes: int, num_warps: int, expected: int) -> None:
    assert count_side_by_side(registers, shared_bytes, num_warps) == expected
    assert count_side_by_side(registers, shared_bytes, num_warps, processor_of(HOPPER)) == expected


def test_another_gpu_has_another_processor() -> None:
    """One of compute capability 8.9: 100 KB of shared memory and 48 warps."""
    ada = Processor(65536, 100 << 10, 48)
    assert count_side_by_side(72, 20992, 4, ada) == 4
    assert count_side_by_side(32, 0, 4, ada) == 12


def test_without_a_gpu_work_is_planned_for_a_few_programs() -> None:
    assert count_programs(DecodeShape(4, 2, 64, 16, torch.float32), torch.device("cpu")) == UNCOMPILED


@pytest.mark.parametrize(("registers", "expected"), [(72, 7 * 132), (158, 3 * 132)])
@pytest.mark.parametrize(
    ("dtype", "codes", "merges"),
    [
        (torch.bfloat16, None, True),
        (torch.float32, None, False),
        (torch.bfloat16, torch.float8_e4m3fn, True),
        (torch.float32, torch.float8_e4m3fn, False),
    ],
)
def test_counts_what_is_launched_later(
    registers: int,
    expected: int,
    dtype: torch.dtype,
    codes: torch.dtype | None,
    merges: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kernel that is compiled to be counted has the constants and the types of the one that is launched."""
    form = pytest.importorskip("kernels.gpu.paged_decode")
    monkeypatch.setattr(form, "find_launch", lambda *key: {**find_launch(*key), "merges": int(merges)})
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    compiled = SimpleNamespace(
        n_regs=registers, metadata=SimpleNamespace(shared=20992, num_warps=4), _init_handles=lambda: None
    )

    class Attend:
        def warmup(self, *arguments: Any, grid: tuple[int, ...], **named: Any) -> Any:
            calls.append((arguments, named))
            return compiled

        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            return lambda *arguments, **named: calls.append((arguments, named))

    class Merge:
        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            return lambda *arguments, **named: None

    monkeypatch.setattr(form, "attend", Attend())
    monkeypatch.setattr(form, "merge", Merge())
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: HOPPER)
    assert count_programs(DecodeShape(8, 2, 64, 16, dtype, codes), torch.device("cuda")) == expected
    with torch.device(DEVICE):
        heads = torch.zeros(3, 12, 64, dtype=dtype)
        halves = [torch.zeros(32, 2, 64).to(codes or dtype) for _ in range(2)]
        scales = [torch.zeros(32, 2, dtype=SCALE_DTYPE) if codes else None for _ in range(2)]
        tables, num_keys = torch.zeros(3, 2, dtype=torch.int32), torch.ones(3, dtype=torch.int32)
        layout = DecodeLayout(3, 8, 2, 8, shares_prefixes=True, merges_in_kernel=merges)
        plan, out = torch.zeros(layout.num_words, dtype=torch.int32), torch.empty(3, 8, 64, dtype=dtype)
    cache = PagedKV(halves[0], halves[1], 16, scales[0], scales[1])
    work = DecodeWork(layout, plan, make_decode_scratch(layout, 64, torch.device(DEVICE)))
    paged_decode(heads[:, :8], cache, tables, num_keys, AttentionOptions(0.125), out, work)
    (counted, counted_constants), (launched, launched_constants) = calls
    assert counted_constants == launched_constants
    kinds = [argument.dtype if isinstance(argument, torch.Tensor) else type(argument) for argument in launched]
    assert [each if isinstance(each, torch.dtype) else type(each) for each in counted] == kinds
    assert counted[15] == launched[15] == 12 * 64, "divisible alike"
