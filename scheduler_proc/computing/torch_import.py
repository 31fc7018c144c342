"""Imports torch faster than a plain import does."""

import gc
import os
import sys
from types import ModuleType

from scheduler_proc.computing.cpu.openmp import limit_spinning

NOT_NEEDED = "torch._meta_registrations"
"""Shapes of operations on fake tensors, with the decompositions that they are made of: a third of the import's time.
Only torch's compiler and exporter use them."""


def import_torch() -> None:
    """Imports torch without `NOT_NEEDED`, which whoever imports it later gets as usual."""
    limit_spinning(os.environ)
    gc.disable()  # it would walk the modules' objects again and again while they come
    sys.modules[NOT_NEEDED] = ModuleType(NOT_NEEDED)
    try:
        import torch  # noqa: F401
    finally:
        del sys.modules[NOT_NEEDED]
        gc.enable()
