"""Tests of how the scheduler imports torch, each in a process that has none yet."""

import subprocess
import sys

IMPORT = """
import gc, sys
from scheduler_proc.computing.torch_import import NOT_NEEDED, import_torch
import_torch()
import torch
assert gc.isenabled()
assert not [name for name in sys.modules if name.startswith((NOT_NEEDED, "torch._decomp", "torch._refs"))]
assert torch.nn.functional.linear(torch.ones(2, 3), torch.ones(4, 3)).tolist() == [[3.0] * 4] * 2
"""

FAKE_TENSORS = """
from torch._subclasses.fake_tensor import FakeTensorMode
assert torch._meta_registrations.activate_meta
with FakeTensorMode():
    assert (torch.empty(2, 3) @ torch.empty(3, 4)).shape == (2, 4)
"""


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False)
    return done.stderr if done.returncode else ""


def test_torch_computes_without_what_only_its_compiler_needs() -> None:
    assert not run(IMPORT)


def test_who_needs_it_later_gets_it() -> None:
    assert not run(IMPORT + "import torch._meta_registrations" + FAKE_TENSORS)
