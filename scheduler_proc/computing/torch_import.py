"""Imports torch faster than a plain import does."""

import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

FAKE_TENSORS = "torch._meta_registrations"
"""Shapes of operations on fake tensors, and their decompositions: a third of the import's time. Torch's compiler,
exporter and profiler need it before any of their own imports."""

FOR_GPUS = "torch._native"
"""Registers other implementations of some operations, all for GPUs."""

UNUSED = frozenset({"torch._native", "torch.export", "torch.quantization", "torch.utils.data", "unittest.mock"})
"""Packages that torch imports only for its users: with their imports and `TAKEN_FROM`, a quarter of the rest. They run
when one of their attributes is first accessed."""

NVML_CHECK = "PYTORCH_NVML_BASED_CUDA_CHECK"
"""Makes torch look for GPUs without initialising one, so that forks of this process can use them."""

BLAS_THREADS = "OPENBLAS_NUM_THREADS"

TAKEN_FROM = ("torch.func", "torch._higher_order_ops", "torch._higher_order_ops.invoke_subgraph")
"""Likewise, but torch itself imports functions and classes from them. They run in this order, which is torch's own."""


def import_torch() -> None:
    """Imports torch; without a CUDA device, leaves out `FAKE_TENSORS` and defers `UNUSED`."""
    if "torch" in sys.modules:
        return
    gc.disable()  # it would traverse the new modules' objects again and again
    _import_numpy()
    sys.modules[FAKE_TENSORS] = ModuleType(FAKE_TENSORS)
    finder = _LateFinder()
    sys.meta_path.insert(0, finder)
    try:
        import torch
    finally:
        sys.meta_path.remove(finder)
        del sys.modules[FAKE_TENSORS]
        gc.freeze()  # nor should it during later imports
        gc.enable()
    os.environ.setdefault(NVML_CHECK, "1")
    if torch.cuda.is_available():
        import_fake_tensors()  # libraries for GPUs may use the compiler
        _run(FOR_GPUS)


def _import_numpy() -> None:
    """Imports numpy without the threads of its OpenBLAS, which are not needed and spin when they start.

    Torch's own BLAS may also be an OpenBLAS; it reads the setting when it is loaded, after this.
    """
    if BLAS_THREADS not in os.environ:
        os.environ[BLAS_THREADS] = "1"
        import_module("numpy")
        del os.environ[BLAS_THREADS]


def import_fake_tensors() -> None:
    """Imports the modules that `import_torch` has left out, if any."""
    for name in (*TAKEN_FROM, FAKE_TENSORS):
        import_module(name)
        _run(name)


def _run(name: str) -> None:
    """Runs the module if torch has imported it and it has not run yet."""
    module = sys.modules.get(name)
    if isinstance(module, _LateModule):
        module.run()


class _LateModule(ModuleType):
    """A module whose code runs when one of its attributes is first accessed."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__all__":
            raise AttributeError(name)
        if self.__name__ in TAKEN_FROM and any(isinstance(finder, _LateFinder) for finder in sys.meta_path):
            return _find_later(self.__name__, name)
        self.run()
        return getattr(self, name)

    def run(self) -> None:
        assert self.__spec__ is not None
        assert isinstance(self.__spec__.loader, _LateLoader)
        self.__class__ = ModuleType  # pyright: ignore[reportAttributeAccessIssue]
        self.__spec__.loader.real.exec_module(self)


def _find_later(module: str, name: str) -> type:
    """Returns a stand-in for a function or class of that name: it can be called and used in annotations."""

    def call(cls: type, *args: Any, **kwargs: Any) -> Any:
        import_fake_tensors()
        return getattr(sys.modules[module], name)(*args, **kwargs)

    return type(name, (), {"__new__": call})


class _LateLoader(Loader):
    def __init__(self, real: Loader):
        self.real = real

    def exec_module(self, module: ModuleType) -> None:
        module.__class__ = _LateModule


class _LateFinder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path) if fullname in UNUSED or fullname in TAKEN_FROM else None
        if spec is not None and spec.loader is not None:
            spec.loader = _LateLoader(spec.loader)
        return spec
