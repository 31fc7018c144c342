"""FlashInfer's part of a runner, with a stand-in for the library: no token may depend on who computes attention."""

import sys
from pathlib import Path

import pytest
import torch

from messages.columns import unpack_int32
from messages.errors import BootError
from scheduler_proc.computing.backends.cuda import flashinfer_attention
from scheduler_proc.computing.load_runner import load_runner
from tests.checkpoints import build_checkpoint, make_config
from tests.scheduler_proc.computing.backends.cuda.flashinfer_stand_in import MarkingDevice, StandIn
from tests.scheduler_proc.computing.backends.cuda.test_forward_passes import (
    FLAGS,
    PROMPTS,
    VARIED,
    load_late,
    no_triton,
    nobody,
    num_graphs,
)
from tests.scheduler_proc.computing.drive import Row, Schedule, generate, plan_batch

FLASHINFER = {"attention_backend": "flashinfer"}


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("qwen3")
    build_checkpoint(path, "qwen3-gqa-tied", head_dim=64, num_hidden_layers=2)
    return path


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """Computes float32, too, so that all tokens are the same."""
    library = StandIn()
    monkeypatch.setitem(sys.modules, "flashinfer", library)
    monkeypatch.setattr(flashinfer_attention, "DTYPES", (torch.float32,))
    return library


@pytest.mark.parametrize("is_eager", [False, True], ids=["graphs", "eager"])
def test_tokens_are_those_of_our_kernels(model_dir: Path, library: StandIn, is_eager: bool) -> None:
    """Graphs of decode rows with room to spare; prefills, and steps of both, launched one operation after another."""
    cpu = load_runner(make_config(model_dir, **FLAGS), nobody)
    schedule = Schedule(chunk_tokens=7, stagger=1, seed=5)
    expected = generate(cpu, PROMPTS, 12, schedule, VARIED)
    device = MarkingDevice(library)
    gpu = load_late(model_dir, device, **FLASHINFER, enforce_eager=is_eager)
    library.num_plans = {False: 0, True: 0}
    assert generate(gpu, PROMPTS, 12, schedule, VARIED) == expected
    assert num_graphs(gpu) == (0 if is_eager else 4)
    assert device.num_replays == library.num_plans[True]
    assert (device.num_replays > 5) != is_eager
    assert library.num_plans[False] > 5
    assert gpu.can_overlap
    assert gpu.degraded == ""


def test_steps_are_launched_ahead(model_dir: Path, library: StandIn) -> None:
    """The plan of a step is made when its turn has come, from what was planned for it and not for the next one."""
    gpu = load_late(model_dir, MarkingDevice(library), **FLASHINFER)
    rows = [Row(i, [7] * (15 + i), 15, num_computed=14 + i, pages=[2 * i, 2 * i + 1]) for i in range(3)]
    steps = [plan_batch(i, [(row, 1) for row in rows[: i + 1]], 16) for i in range(3)]
    alone = [unpack_int32(gpu.run(step).next_tokens) for step in steps]
    launched = [gpu.launch(step) for step in steps]
    assert [unpack_int32(step.result().next_tokens) for step in launched] == alone
    assert len({tuple(tokens) for tokens in alone}) == 3


def test_what_cannot_be_had_is_a_clear_error(
    model_dir: Path, tmp_path: Path, library: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path, reason: str, load_triton_kernels=no_triton) -> None:
        with pytest.raises(BootError, match=f"^--attention-backend flashinfer: {reason}"):
            load_late(path, MarkingDevice(library), load_triton_kernels, **FLASHINFER)

    def fail(device_type: str) -> None:
        raise ModuleNotFoundError("No module named 'triton'")

    refused(model_dir, r"Triton cannot be loaded \(No module named 'triton'\); pip install triton", fail)
    with pytest.raises(BootError, match=r"^--attention-backend flashinfer: the model runs on cpu"):
        load_runner(make_config(model_dir, **FLAGS, **FLASHINFER), nobody)
    monkeypatch.setattr(flashinfer_attention, "DTYPES", (torch.bfloat16,))
    refused(model_dir, "FlashInfer computes bfloat16 and float16: take --dtype")
    monkeypatch.setattr(flashinfer_attention, "DTYPES", (torch.float32,))
    monkeypatch.setitem(sys.modules, "flashinfer", None)
    refused(
        model_dir, r"FlashInfer cannot be imported \(.*\): pip install flashinfer-python; --attention-backend triton"
    )
    build_checkpoint(tmp_path, "qwen3-gqa-tied", num_hidden_layers=1)
    refused(tmp_path, "FlashInfer has kernels for heads of 64, 128, 256, the model's are 24")
