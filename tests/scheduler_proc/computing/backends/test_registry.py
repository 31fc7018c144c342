"""A kind of device is chosen in one place, and nothing else in the computing half asks which it is."""

import re
from pathlib import Path

import pytest
import torch

from messages.config.server import ModelConfig
from messages.errors import BootError
from scheduler_proc.computing.backends import registry
from scheduler_proc.computing.backends.cpu.backend import CpuBackend
from scheduler_proc.computing.backends.cuda.backend import CudaBackend
from scheduler_proc.computing.backends.registry import find_backend

SCHEDULER = Path(__file__).resolve().parents[4] / "scheduler_proc"
QUESTION = re.compile(r"\bis_cuda\b|device\.type\b")


class OtherBackend(CpuBackend):
    """A device of another kind, as a folder of its own would add it."""

    name = "other"


def test_the_first_available_backend_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert isinstance(find_backend(ModelConfig()), CpuBackend)
    assert isinstance(find_backend(ModelConfig(device="cpu")), CpuBackend)
    with pytest.raises(BootError, match=r"^--device cuda: torch finds no CUDA device; --device cpu runs without one$"):
        find_backend(ModelConfig(device="cuda"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert isinstance(find_backend(ModelConfig()), CudaBackend)
    monkeypatch.setattr(registry, "BACKENDS", (OtherBackend(), *registry.BACKENDS))
    assert isinstance(find_backend(ModelConfig()), OtherBackend)
    assert isinstance(find_backend(ModelConfig(device="cuda")), CudaBackend)


def test_nothing_requests_the_kind_of_a_device() -> None:
    files = [path for path in SCHEDULER.rglob("*.py") if "backends" not in path.parts]
    assert len(files) > 50
    assert not [str(path) for path in files if QUESTION.search(path.read_text(encoding="utf-8"))]
