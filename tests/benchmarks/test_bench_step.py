"""The step benchmark: on the CPU as it is, and what it does on a GPU with stand-ins for the runner and for CUDA."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks import bench_step
from benchmarks.kernels import measure
from benchmarks.model_shapes import make_shape, plan_decode, step_bytes, step_flop

QUICK = ["--shape", "gpt2-124m", "--device", "cpu", "--quick", "--cpu-threads", "1", "--context", "32"]
SMALL = ["--shape", "gpt2-124m", "--rows", "3", "--context", "40", "--steps", "4"]


@pytest.fixture(autouse=True)
def small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "READ_BYTES", {"cpu": 1 << 20})
    monkeypatch.setattr(measure, "PRODUCT_SIZE", {"cpu": 32})


class FakeRunner:
    """Writes down what it is asked for; its steps take no time."""

    can_overlap = True
    windows = None
    states = None

    def __init__(self, seen: list[str]):
        self.seen = seen

    def launch(self, batch: object) -> Any:
        self.seen.append("launch")
        return SimpleNamespace(result=lambda: self.seen.append("result"))

    def run(self, batch: object) -> None:
        self.launch(batch).result()


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls of CUDA and of the runner, in order; 8 ms pass between two events."""
    seen: list[str] = []

    class Event:
        def __init__(self, enable_timing: bool):
            assert enable_timing

        def record(self) -> None:
            seen.append("record")

        def elapsed_time(self, end: "Event") -> float:
            return 8.0

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: seen.append("synchronize"))
    return seen


def test_it_runs_on_a_cpu(tmp_path: Path) -> None:
    file = tmp_path / "step.json"
    assert bench_step.main([*QUICK, "--json", str(file)]) == 0
    results = json.loads(file.read_text(encoding="utf-8"))["results"]
    assert results["degraded"] == ""
    (row,) = results["rows"]
    assert row["ms"] > 0
    assert row["host_ms"] > 0
    assert row["floor_ms"] == max(row["floor_read_ms"], row["floor_compute_ms"])
    assert row["times_floor"] == pytest.approx(row["ms"] / row["floor_ms"])
    assert not {"gpu_ms", "kernel_ms", "kernels"} & set(row)


def test_steps_are_launched_back_to_back(seen: list[str]) -> None:
    """No result may be waited for before the last launch, or the GPU would wait for the host."""
    runner: Any = FakeRunner(seen)
    assert bench_step.back_to_back_ms(runner, plan_decode(1, 8), 4) == 2.0
    expected = ["synchronize", "record", *["launch"] * 4, "record", *["result"] * 4, "synchronize"]
    assert seen == expected


def test_a_launch_is_timed_with_nothing_before_it(seen: list[str]) -> None:
    runner: Any = FakeRunner(seen)
    assert bench_step.launch_ms(runner, plan_decode(1, 8), 3) >= 0
    assert seen == ["launch", "result"] * 3


EVENTS = [
    SimpleNamespace(key="small", count=6, self_device_time_total=30.0),
    SimpleNamespace(key="on the host alone", count=9, self_device_time_total=0),
    SimpleNamespace(key="attend" + "x" * 300, count=84, self_device_time_total=900.0),
]


def test_the_table_is_of_one_step_and_of_what_the_device_ran() -> None:
    kernels = bench_step.tabulate(EVENTS, 3)
    assert [(kernel.name[:6], kernel.count, kernel.us) for kernel in kernels] == [("attend", 28, 300), ("small", 2, 10)]
    assert len(kernels[0].name) == bench_step.MAX_NAME_CHARS


class FakeProfile:
    def __init__(self, activities: object):
        pass

    def __enter__(self) -> "FakeProfile":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def key_averages(self) -> list[Any]:
        return EVENTS


def no_profiler(activities: object) -> FakeProfile:
    raise RuntimeError("CUPTI is not there\nmore")


@pytest.mark.parametrize("profile", [FakeProfile, no_profiler])
def test_on_a_gpu_a_row_has_its_times(
    seen: list[str], monkeypatch: pytest.MonkeyPatch, profile: Callable[..., FakeProfile]
) -> None:
    """And without the profiler's table all others."""
    monkeypatch.setattr(torch.profiler, "profile", profile)
    options = bench_step.make_parser().parse_args([*SMALL, "--device", "cuda"])
    runner: Any = FakeRunner(seen)
    shape = make_shape(options.shape)
    limits = {"copy GB/s": 3000.0, "bfloat16 product GFLOP/s": 1.0}
    (row,) = bench_step.measure(runner, shape, options, limits)
    assert row["gpu_ms"] == 2.0
    assert row["floor_ms"] == row["floor_compute_ms"] == pytest.approx(step_flop(shape, 3, 41) / 1e6)
    assert row["tok/s"] == pytest.approx(3 / 2.0 * 1e3)
    if profile is FakeProfile:
        assert row["kernel_ms"] == pytest.approx(0.31)
        assert isinstance(row["kernels"], list)
    else:
        assert row["no_kernels"] == "CUPTI is not there"


def test_what_has_been_measured_is_kept_when_a_later_batch_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_at_two(num_rows: int, context: int) -> Any:
        if num_rows == 2:
            raise RuntimeError("out of memory")
        return plan_decode(num_rows, context)

    monkeypatch.setattr(bench_step, "plan_decode", fail_at_two)
    monkeypatch.setattr(bench_step, "make_shape", lambda name, num_layers: make_shape(name, 1))
    file = tmp_path / "step.json"
    flags = [*SMALL[:2], "--rows", "1", "2", *SMALL[4:], "--device", "cpu", "--cpu-threads", "1", "--json", str(file)]
    with pytest.raises(RuntimeError, match="out of memory"):
        bench_step.main(flags)
    assert [row["rows"] for row in json.loads(file.read_text(encoding="utf-8"))["results"]["rows"]] == [1]


def test_a_step_reads_weights_once_and_keys_and_values_of_each_row() -> None:
    shape = make_shape("qwen3-0.6b")
    one, two = (step_bytes(shape, num_rows, 513) for num_rows in (1, 2))
    assert two - one == 114_688 * 513
    assert one - 114_688 * 513 == 2 * 596_049_920


def test_a_step_multiplies_each_weight_for_each_row() -> None:
    shape = make_shape("qwen3-0.6b")
    attention = 4 * 28 * 16 * 128 * 513
    assert step_flop(shape, 2, 513) == 2 * (2 * 596_049_920 + attention)


def test_rows_of_a_planned_step_have_slots_of_their_own() -> None:
    batch = plan_decode(3, 40)
    assert list(torch.frombuffer(bytearray(batch.slots), dtype=torch.int64)) == [40, 88, 136]
