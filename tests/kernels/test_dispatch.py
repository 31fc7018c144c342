"""The choice of what computes an operation."""

from pathlib import Path
from typing import Any

import pytest
import torch

import kernels
from kernels import dispatch
from kernels.cpu.arguments import STRUCTURES
from kernels.cpu.launchers import LAUNCHERS
from kernels.dispatch import call, find_implementation, is_on_cpu
from kernels.gpu import triton_kernels

ZEROS = torch.zeros(2, 32)


def reference(*arguments: Any) -> tuple[str, Any]:
    return "reference", *arguments


def test_the_kernel_of_the_tensors_device_is_taken(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (find_implementation("gelu", ZEROS) is None) == (backend == "torch")
    assert find_implementation("gelu", ZEROS.half()) is None
    assert find_implementation("gelu", ZEROS.to("meta")) is None
    monkeypatch.setattr(triton_kernels, "_loaded", {"gelu": max})
    monkeypatch.setattr(triton_kernels, "_device_type", "meta")
    assert find_implementation("gelu", ZEROS.to("meta")) is max
    assert find_implementation("gelu", ZEROS) is not max
    monkeypatch.setattr(triton_kernels, "_device_type", "cpu")
    assert find_implementation("gelu", ZEROS) is max


@pytest.mark.parametrize("taken", [True, False])
def test_the_reference_computes_what_no_kernel_takes(taken: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    assert call("no operation", ZEROS, reference, 1, 2) == ("reference", 1, 2)
    kernel = lambda *arguments: ("kernel", *arguments) if taken else NotImplemented  # noqa: E731
    monkeypatch.setattr(dispatch, "find_implementation", lambda name, x: kernel)
    assert call("some operation", ZEROS, reference, 1) == ("kernel" if taken else "reference", 1)


def test_a_kernel_that_returns_nothing_has_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "find_implementation", lambda name, x: lambda: None)
    assert call("some operation", ZEROS, reference) is None


def test_every_c_kernel_has_a_launcher() -> None:
    assert set(LAUNCHERS) == set(STRUCTURES)


def test_devices_are_distinguished() -> None:
    assert is_on_cpu(ZEROS.device)
    assert not is_on_cpu(torch.device("meta"))


def test_no_other_file_requests_a_device() -> None:
    assert kernels.__file__ is not None
    questions = ("is_cuda", "is_cpu", "is_mps", "device.type")
    texts = {file.name: file.read_text(encoding="utf-8") for file in Path(kernels.__file__).parent.rglob("*.py")}
    assert {name for name, text in texts.items() if any(each in text for each in questions)} == {"dispatch.py"}
