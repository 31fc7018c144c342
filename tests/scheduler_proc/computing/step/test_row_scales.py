"""Made up: rows whose embeddings are multiplied."""

from pathlib import Path

import pytest
from msgspec.structs import replace
from safetensors.torch import load_file, save_file

from messages.columns import pack_float32, unpack_int32
from scheduler_proc.computing.backends.cpu.forward_passes import CpuForwardPasses
from scheduler_proc.computing.load_runner import load_runner
from scheduler_proc.computing.runner import Runner
from scheduler_proc.deciding.isolation import slice_rows
from tests.checkpoints import build_checkpoint, make_config
from tests.scheduler_proc.computing.drive import Row, plan_batch

SCALES = [1.0, -3.0]


def load(model_dir: Path) -> Runner:
    return load_runner(make_config(model_dir, quantization="int8"), lambda text, fraction: None)


def run(runner: Runner, scales: list[float], rows: range = range(2)) -> list[int]:
    """Returns the next token of each of these rows, which have the same prompt."""
    planned = [(Row(uid, [5, 6, 7, 300], 4, pages=[uid]), 4) for uid in range(2)]
    batch = replace(plan_batch(0, planned, 16), row_scales=pack_float32(scales))
    return unpack_int32(runner.run(slice_rows(batch, rows.start, rows.stop)).next_tokens).tolist()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    build_checkpoint(tmp_path / "model", "llama-mha")
    return tmp_path / "model"


def test_each_row_has_its_number_and_the_halves_of_a_step_keep_them(model: Path) -> None:
    runner = load(model)
    tokens = run(runner, SCALES)
    assert run(runner, SCALES, range(1)) + run(runner, SCALES, range(1, 2)) == tokens
    weights = load_file(model / "model.safetensors")
    name = "model.embed_tokens.weight"
    save_file(weights | {name: -3 * weights[name]}, model / "model.safetensors", {"format": "pt"})
    assert run(load(model), [1.0, 1.0]) == [tokens[1]] * 2
    assert tokens[0] != tokens[1]


def test_steps_with_it_are_computed_call_by_call_and_others_are_captured(model: Path) -> None:
    runner = load(model)
    passes = runner.forward_passes
    assert isinstance(passes, CpuForwardPasses)
    decode = plan_batch(0, [(Row(0, [5, 6, 7], 2, num_computed=2, pages=[0]), 1)], 16)
    for scales in ([2.0], []):
        runner.run(replace(decode, row_scales=pack_float32(scales)))
    assert list(passes.captures) == [(frozenset(), 1)]
