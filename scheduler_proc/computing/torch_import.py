"""Imports torch faster than a plain import does."""

import gc
import os
import sys
from importlib import import_module
from types import ModuleType

from scheduler_proc.computing.cpu.openmp import limit_spinning

FAKE_TENSORS = "torch._meta_registrations"
"""Shapes of operations on fake tensors, with the decompositions that they are made of: a third of the import's time.
Torch's compiler, its exporter and its profiler need it, and have to import it before anything else of theirs."""


def import_torch() -> None:
    """Imports torch, without `FAKE_TENSORS` where there is no CUDA device."""
    limit_spinning(os.environ)
    gc.disable()  # it would walk the modules' objects again and again while they come
    sys.modules[FAKE_TENSORS] = ModuleType(FAKE_TENSORS)
    try:
        import torch
    finally:
        del sys.modules[FAKE_TENSORS]
        gc.enable()
    if torch.cuda.is_available():
        import_fake_tensors()  # libraries for GPUs may use the compiler


def import_fake_tensors() -> None:
    """Imports what `import_torch` has left out, if it has."""
    import_module(FAKE_TENSORS)
