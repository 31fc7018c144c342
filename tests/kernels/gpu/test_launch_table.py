"""The one way to a kernel's launch parameters: a rule for any GPU, an entry for one shape on one kind of GPU."""

import ast
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from kernels.dispatch import count_programs
from kernels.gpu import launch_table
from kernels.gpu.launch_table import HOPPER, RULES, TUNED, find_launch, launch_on
from kernels.plans.decode_work import DecodeShape

KERNELS = Path(launch_table.__file__).parent
LAUNCH_NAMES = {"num_warps", "num_stages"}


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    """What a test has put into the table is not remembered."""
    yield
    launch_on.cache_clear()


def test_no_kernel_is_launched_past_the_table() -> None:
    """No file but the table's two names warps or stages, except the one that counts registers."""
    for file in sorted(KERNELS.glob("*.py")):
        if file.stem in ("launch_table", "tuned_launches", "occupancy"):
            continue
        named = {
            each
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
            for each in (getattr(node, "arg", None), getattr(node, "value", None))
            if isinstance(each, str)
        }
        assert not LAUNCH_NAMES & named, file.name


def test_an_entry_replaces_parameters_of_one_shape_on_one_kind_of_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TUNED, (HOPPER, "paged_decode", 3, 112, 2), {"num_warps": 2, "BLOCK_N": 32})
    monkeypatch.setattr(launch_table, "find_capability", lambda: HOPPER)
    assert find_launch("paged_decode", 3, 112, 2) == {"BLOCK_N": 32, "BLOCK_D": 128, "num_warps": 2, "num_stages": 3}
    for others in (launch_on(HOPPER, "paged_decode", 3, 112, 4), launch_on(80, "paged_decode", 3, 112, 2)):
        assert others["num_warps"] == 4


def test_entries_are_of_kernels_and_parameters_that_there_are() -> None:
    for (capability, kernel, *shape), parameters in TUNED.items():
        assert 70 <= capability < 130
        assert set(parameters) <= set(RULES[kernel](*shape))


@pytest.mark.parametrize(("version", "expected"), [((8, 9), 89), ((9, 0), 90), ((12, 0), 120), (None, HOPPER)])
def test_the_gpu_is_requested_its_capability(
    version: tuple[int, int] | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: version is not None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: version)
    assert launch_table.find_capability.__wrapped__() == expected


def test_programs_of_the_table_go_before_those_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is compiled then: torch has no device here."""
    pytest.importorskip("triton", reason="needs triton")
    shape = DecodeShape(24, 8, 112, 16, torch.bfloat16)
    monkeypatch.setitem(TUNED, (launch_table.find_capability(), "decode_work", *shape.launch_shape), {"programs": 6})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(multi_processor_count=132))
    assert count_programs(shape, torch.device("cuda")) == 6 * 132
