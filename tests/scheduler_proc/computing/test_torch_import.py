"""Tests of how the scheduler imports torch, each in a process that has none yet."""

import subprocess
import sys

import pytest
import torch

IMPORT = """
import gc, sys
from scheduler_proc.computing.torch_import import FAKE_TENSORS, import_fake_tensors, import_torch
import_torch()
import torch
assert gc.isenabled()
assert torch.nn.functional.linear(torch.ones(2, 3), torch.ones(4, 3)).tolist() == [[3.0] * 4] * 2
"""

WITHOUT = """
assert not [name for name in sys.modules if name.startswith((FAKE_TENSORS, "torch._decomp", "torch._refs"))]
"""

USE_THEM = """
import_fake_tensors()
from torch._subclasses.fake_tensor import FakeTensorMode
assert torch._meta_registrations.activate_meta
with FakeTensorMode():
    assert (torch.empty(2, 3) @ torch.empty(3, 4)).shape == (2, 4)
"""


PROFILE = """
from scheduler_proc.computing.torch_observer import TorchObserver
observer = TorchObserver()
observer.start()
torch.ones(4) @ torch.ones(4)
observer.stop()
"""


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False)
    return done.stderr if done.returncode else ""


@pytest.mark.skipif(torch.cuda.is_available(), reason="where there is a CUDA device, all of torch is imported")
def test_torch_computes_without_what_only_its_compiler_needs() -> None:
    assert not run(IMPORT + WITHOUT)


@pytest.mark.parametrize("use", [USE_THEM, PROFILE], ids=["fake tensors", "profiler"])
def test_who_needs_it_later_gets_it(use: str) -> None:
    assert not run(IMPORT + use)
