"""How the scheduler imports torch, in a process that has none yet."""

import os
import subprocess
import sys

import pytest
import torch

CODE = """
import gc, os, sys
from types import SimpleNamespace
from scheduler_proc.computing.torch_import import FAKE_TENSORS, UNUSED, import_torch
import_torch()
import torch
assert len(os.listdir("/proc/self/task")) == 1, "libraries have begun threads"
assert "OPENBLAS_NUM_THREADS" not in os.environ
assert gc.isenabled()
assert gc.get_freeze_count() > 50_000, "collections walk all that torch has made"
assert not [name for name in sys.modules if name.startswith((FAKE_TENSORS, "torch._decomp", "torch._refs"))]
assert UNUSED <= sys.modules.keys(), "they are there by their names"
unused = ("torch.ao.quantization", "torch._export",
          "torch._functorch.eager_transforms", "torch._subclasses.fake_tensor", "torch.utils._debug_mode", "asyncio",
          "torch._native.registry")
assert not sys.modules.keys() & set(unused), "and have not run"
assert torch.nn.functional.linear(torch.ones(2, 3), torch.ones(4, 3)).tolist() == [[3.0] * 4] * 2

from scheduler_proc.computing.loading import weights
from scheduler_proc.computing.placement import Placement
from scheduler_proc.computing.model.parameters import Parameter
weights.model_parameters = lambda model, layers: [Parameter("x.weight", (2, 3), "linear")]
shard = SimpleNamespace(whole=None, rank=0, num_ranks=1, layers=None)
dummy = weights.make_dummy_weights(shard, Placement(torch.device("cpu"), torch.float32), lambda text, fraction: None)
assert dummy["x.weight"].stored.shape == (2, 3)

from scheduler_proc.computing.torch_observer import TorchObserver
observer = TorchObserver()
observer.start()
torch.ones(4) @ torch.ones(4)
observer.stop()

assert torch._native.registry.native_decomp_table(overrides_only=True) is not None
assert torch.distributions.Normal(0.0, 1.0).mean == 0.0
assert torch.optim.Adam.__module__ == "torch.optim.adam"
assert torch.cond(torch.tensor(True), lambda x: x + 1, lambda x: x - 1, (torch.ones(2),)).tolist() == [2.0, 2.0]
assert torch.vmap(lambda x: x * 2)(torch.ones(2)).tolist() == [2.0, 2.0]
assert torch.func.grad(lambda x: x * x)(torch.tensor(3.0)) == 6.0
assert torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2)).tolist() == [2.0, 2.0]

from torch._subclasses.fake_tensor import FakeTensorMode
with FakeTensorMode():
    assert (torch.empty(2, 3) @ torch.empty(3, 4)).shape == (2, 4)
"""


@pytest.mark.skipif(torch.cuda.is_available(), reason="where there is a CUDA device, all of torch is imported")
def test_torch_computes_without_what_is_not_used_and_the_one_who_uses_it_gets_it() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
