"""Stages on machines of different speed and memory: their layers, the reason, and that a restart changes neither."""

import itertools
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from scheduler_proc.computing.backends.backend import Place
from scheduler_proc.computing.backends.cpu import cores
from scheduler_proc.computing.backends.cpu.backend import CpuBackend
from scheduler_proc.computing.backends.registry import find_backend
from scheduler_proc.computing.load_runner import load_runner
from scheduler_proc.computing.loading import stage_placement
from scheduler_proc.computing.loading.stage_placement import Speed, measure
from scheduler_proc.computing.loading.target import Target, find_target
from scheduler_proc.computing.model.stage_split import Sizes
from scheduler_proc.computing.runner import Runner
from tests.checkpoints import build_checkpoint, make_config
from tests.gguf_models import build_block_model
from tests.scheduler_proc.computing.ranks import no_report, ranks_of
from tests.scheduler_proc.computing.test_ranks import decoder_of

FAST, SLOW = Speed(10**10, 10**9, 10**10), Speed(4 * 10**9, 4 * 10**8, 4 * 10**9)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model of 12 layers that is measured; the directory is that of its run, too."""
    monkeypatch.setattr(cores, "allowed_cpus", lambda: frozenset(range(8)))
    monkeypatch.setattr(stage_placement, "MIN_WEIGHTS", 0)
    build_checkpoint(tmp_path, "llama-gqa-tied", num_hidden_layers=12)
    return tmp_path


def set_speeds(monkeypatch: pytest.MonkeyPatch, *by_stage: Speed) -> list[int]:
    """Gives the stages these speeds on cores and memory of their own; returns a list of the stages measured next."""
    measured, numbers = list[int](), itertools.count()
    monkeypatch.setattr(stage_placement, "crc32", lambda _: next(numbers))

    def find_speed(_: Any, target: Target, __: Any) -> Speed:
        measured.append(target.pipeline.place.stage)
        return by_stage[target.pipeline.place.stage]

    monkeypatch.setattr(stage_placement, "measure", find_speed)
    return measured


def count_layers(runners: list[Runner]) -> list[int]:
    """Returns the number of layers of each stage; the scheduler has the last."""
    first, *others = (len(decoder_of(runner).model.held) for runner in runners)
    return [*others, first]


def load(path: Path, num_stages: int, name: str = "ranks", **flags: Any) -> tuple[list[int], str]:
    with ranks_of(path, 1, path / name, num_stages, **flags) as runners:
        assert all("stages" not in runner.placement for runner in runners[1:])
        return count_layers(runners), runners[0].placement.get("stages", "")


def test_a_slow_machine_gets_fewer_layers_for_the_whole_run(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = set_speeds(monkeypatch, FAST, SLOW, FAST)
    layers, text = load(model, 3)
    assert sum(layers) == 12
    assert layers[1] < layers[0]
    assert sorted(measured) == [0, 1, 2]
    assert text.startswith(f"auto: {','.join(map(str, layers))} layers (machines are not alike: rank1 ")
    assert "10 GB/s" in text
    assert "rank2 " in text
    assert "4 GB/s" in text
    measured = set_speeds(monkeypatch, SLOW, FAST, FAST)
    assert load(model, 3, "ranks-of-a-later-engine") == (layers, text)
    assert not measured
    assert load(model, 3, stages="4,4,4") == ([4, 4, 4], "")


def test_alike_machines_get_equal_work(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noisy = [Speed(*(round(number * factor) for number in FAST)) for factor in (0.9, 1.05)]
    set_speeds(monkeypatch, *noisy)
    layers, text = load(model, 2)
    assert "machines are alike" in text
    (model / "split").unlink()
    set_speeds(monkeypatch, *noisy[::-1])
    assert load(model, 2)[0] == layers
    (model / "split").unlink()
    set_speeds(monkeypatch, FAST, SLOW)
    monkeypatch.setattr(stage_placement, "crc32", crc32)
    assert load(model, 2)[0] == layers, "on the same cores one was only disturbed"


def test_one_stream_is_computed_where_it_is_fastest_as_far_as_memory_allows(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_speeds(monkeypatch, FAST, SLOW)
    assert load(model, 2, stages="one-stream")[0] == [11, 1]
    (model / "split").unlink()
    of_layer = 1 << 50
    monkeypatch.setattr(stage_placement, "_count_sizes", lambda *_: Sizes([of_layer] * 12))
    monkeypatch.setattr(CpuBackend, "free_bytes", lambda *_: 7 * of_layer)
    assert load(model, 2, stages="one-stream")[0] == [7, 5]


@pytest.mark.parametrize("flags", [{}, {"quantization": "int8"}, {"quantization": "int4"}, {"dtype": "bfloat16"}])
def test_a_process_measures_itself(model: Path, flags: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_placement, "MEASURED_BYTES", 1 << 20)
    monkeypatch.setattr(stage_placement, "MEASURED_S", 0.01)
    config = make_config(model, **flags)
    target = find_target(config, find_backend(config.model), Place(1), no_report)
    speed = measure(decoder_of(load_runner(config, no_report)).model, target, {})
    assert 10**7 < speed.read < speed.multiplied < 10**12
    per_weight = speed.read_bytes / speed.read
    assert per_weight == pytest.approx(
        {"int4": 0.56, "int8": 1, "bfloat16": 2}.get("".join(flags.values()), 4), rel=0.3
    )


@pytest.mark.parametrize("forms", [("Q4_K",), ("Q6_K", "Q8_0")])
def test_weights_in_blocks_are_measured(
    model: Path, forms: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parts of a weight may be in several forms."""
    monkeypatch.setattr(stage_placement, "MEASURED_BYTES", 1 << 20)
    monkeypatch.setattr(stage_placement, "MEASURED_S", 0.01)
    path = build_block_model(tmp_path, "llama-mha", lambda name: forms[0] if "up" in name else forms[-1]).path
    layers, text = load(path, 2)
    assert layers == [1, 1]
    assert "alike: rank1 " in text
    assert " GB/s, 32 rows " in text
