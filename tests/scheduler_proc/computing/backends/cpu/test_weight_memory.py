"""Weights in a file in memory: one scheduler writes them, the others map them, and none waits for a dead one."""

import faulthandler
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels.cpu.huge_pages import ALIGNMENT, Chunk, empty_huge
from kernels.formats.packed import PackedWeight
from kernels.formats.plain import PlainWeight
from kernels.formats.quantized import QUANTIZED
from kernels.operations.packed_linear import pack
from messages.columns import unpack_int32
from messages.config.server import Config
from messages.errors import BootError
from messages.ring.replies import DetokenizeMsg
from scheduler_proc.computing.backends.cpu import weight_memory
from scheduler_proc.computing.backends.cpu.weight_memory import WeightMemory
from scheduler_proc.computing.load_runner import find_shared_models, load_models
from scheduler_proc.computing.loading import weight_cache
from scheduler_proc.computing.model.blocks.weights import Weights
from scheduler_proc.deciding_half import make_scheduler
from tests.checkpoints import build_checkpoint, make_config
from tests.gguf_models import build_block_model
from tests.scheduler_proc.clients import user_msg

OURS, OTHERS = b"1" * 32, b"2" * 32


@pytest.fixture
def path() -> Iterator[Path]:
    descriptor = os.memfd_create("weights")
    yield Path(f"/proc/self/fd/{descriptor}")
    os.close(descriptor)


def make_weights() -> Weights:
    generator = torch.Generator().manual_seed(1)
    weight_OI = torch.randn(70, 64, generator=generator)
    return {
        "norm": PlainWeight(torch.arange(5.0)),
        "packed": PackedWeight(pack(weight_OI.bfloat16()), *weight_OI.shape),
        "quantized": QUANTIZED[8].quantize(weight_OI),
        "large": PlainWeight(torch.randn(900, 1000, generator=generator).bfloat16()),
    }


def parts_of(weights: Weights) -> list[Any]:
    """Returns all that there is of each, as plain values."""
    return [
        (name, weight.format.name, weight.numbers, weight.stored.dtype, weight.stored.tolist())
        for name, weight in weights.items()
    ]


def never() -> Weights:
    raise AssertionError("they are loaded again")


def ignore_report(text: str, fraction: float | None) -> None:
    pass


def in_child(run: Callable[[], object]) -> int:
    """Forks a process that runs this and ends; returns its pid. It must not compute in parallel."""
    pid = os.fork()
    if pid == 0:
        faulthandler.disable()
        try:
            run()
        finally:
            os._exit(1)
    return pid


def end(memory: WeightMemory) -> None:
    """What the end of its process does."""
    os.close(memory._descriptor)


def test_the_next_one_has_all_that_the_first_one_made_without_making_it(path: Path):
    expected = parts_of(make_weights())
    assert WeightMemory(path, OURS).find() is None
    first = WeightMemory(path, OURS)
    assert parts_of(first.load(make_weights, ignore_report)) == expected
    assert parts_of(WeightMemory(path, OURS).load(never, ignore_report)) == expected
    end(first)
    found = WeightMemory(path, OURS).find()
    assert found is not None
    assert parts_of(found) == expected


def test_it_is_there_once_in_memory(path: Path):
    size = 32 << 20
    WeightMemory(path, OURS).load(lambda: {"a": PlainWeight(torch.ones(size // 4))}, ignore_report)
    WeightMemory(path, OURS).load(never, ignore_report)
    assert size <= path.stat().st_blocks * 512 < 1.2 * size


def test_what_is_made_in_the_file_is_not_copied_and_the_rest_is(path: Path, monkeypatch: pytest.MonkeyPatch):
    copied: list[str] = []
    place = weight_memory._place

    def record(name: str, weight: Any, chunk: Chunk) -> weight_memory.KeptWeight:
        copied.extend([name] * (chunk.find(weight.stored) is None))
        assert chunk.find(empty_huge((1,), torch.uint8)) is None, "it is allocated from while they are made alone"
        return place(name, weight, chunk)

    def make_some() -> Weights:
        weights = make_weights()
        del weights["quantized"]  # without a kernel, torch allocates it elsewhere
        return weights

    monkeypatch.setattr(weight_memory, "_place", record)
    loaded = WeightMemory(path, OURS).load(make_some, ignore_report, count_bytes=lambda: 8 << 20)
    assert copied == ["norm", "large"]
    assert parts_of(loaded) == parts_of(make_some())
    assert path.stat().st_size == 2 << 20, "what was not used is given back"


def test_no_one_can_write_to_what_all_read(path: Path):
    weights = WeightMemory(path, OURS).load(make_weights, ignore_report)
    _, status = os.waitpid(in_child(lambda: weights["norm"].stored.__setitem__(0, 7.0)), 0)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGSEGV
    assert weights["norm"].stored[0] == 0.0


def test_weights_of_other_flags_are_not_taken_and_stay_while_someone_uses_them(path: Path):
    first = WeightMemory(path, OURS)
    ours = first.load(make_weights, ignore_report)
    assert WeightMemory(path, OTHERS).find() is None
    other: Weights = {"other": PlainWeight(torch.zeros(3))}
    assert WeightMemory(path, OTHERS).load(lambda: other, ignore_report) is other
    assert parts_of(ours) == parts_of(make_weights())
    end(first)
    del ours
    last = WeightMemory(path, OTHERS).load(lambda: {"last": PlainWeight(torch.ones(3))}, ignore_report)
    assert parts_of(last) == parts_of({"last": PlainWeight(torch.ones(3))})
    assert WeightMemory(path, OURS).find() is None


def test_one_that_died_amid_writing_leaves_nothing(path: Path, monkeypatch: pytest.MonkeyPatch):
    place = weight_memory._place

    def die(name: str, weight: Any, chunk: Chunk) -> weight_memory.KeptWeight:
        if name == "quantized":
            raise KeyboardInterrupt
        return place(name, weight, chunk)

    first = WeightMemory(path, OURS)
    with monkeypatch.context() as patch:
        patch.setattr(weight_memory, "_place", die)
        with pytest.raises(KeyboardInterrupt):
            first.load(make_weights, ignore_report)
    end(first)
    assert path.stat().st_size > 0
    assert WeightMemory(path, OURS).find() is None
    assert parts_of(WeightMemory(path, OURS).load(make_weights, ignore_report)) == parts_of(make_weights())


@pytest.mark.parametrize("offset", [0, 40, None])
def test_a_header_or_list_that_is_not_what_was_sealed_is_none(path: Path, offset: int | None):
    first = WeightMemory(path, OURS)
    first.load(make_weights, ignore_report)
    list_begin = first._read_header()[2]
    os.pwrite(first._descriptor, b"?", list_begin + 2 if offset is None else offset)
    assert WeightMemory(path, OURS).find() is None


def test_one_that_waits_continues_when_the_one_that_loads_dies(path: Path):
    begun, report_progress = os.pipe()

    def load_for_ever() -> Weights:
        os.write(report_progress, b"!")
        time.sleep(600)
        return {}

    pid = in_child(lambda: WeightMemory(path, OURS).load(load_for_ever, ignore_report))
    assert os.read(begun, 1) == b"!"
    reports: list[str] = []

    def report(text: str, fraction: float | None) -> None:
        if not reports:
            os.kill(pid, signal.SIGKILL)
        reports.append(text)

    weights = WeightMemory(path, OURS).load(make_weights, report)
    os.waitpid(pid, 0)
    assert reports[0] == "waiting for the weights, which another scheduler loads"
    assert parts_of(weights) == parts_of(make_weights())


def test_without_a_file_the_error_reports_what_to_do(tmp_path: Path):
    with pytest.raises(BootError, match="--no-share-weights"):
        WeightMemory(tmp_path / "none", OURS)


@pytest.mark.parametrize("flags", [{}, {"dtype": "bfloat16"}, {"quantization": "int8"}, {"load_format": "dummy"}])
def test_a_scheduler_with_shared_weights_computes_the_same(
    tmp_path: Path, path: Path, flags: dict[str, str], monkeypatch: pytest.MonkeyPatch
):
    build_checkpoint(tmp_path, "llama-gqa-tied")
    assert_same_shared(path, make_config(tmp_path, **flags), monkeypatch)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_blocks_of_a_file_are_shared_as_they_are_packed(
    tmp_path: Path, path: Path, dtype: str, monkeypatch: pytest.MonkeyPatch
):
    forms = {"attn_v": "Q6_K", "token_embd": "Q6_K", "ffn_up": "Q5_K"}
    model = build_block_model(
        tmp_path, "llama-gqa-tied", lambda name: forms.get(name.removesuffix(".weight").rpartition(".")[2], "Q4_K")
    )
    assert_same_shared(path, make_config(model.path, dtype=dtype), monkeypatch)


def assert_same_shared(path: Path, config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """Generates without shared weights, as their writer, and as their readers."""

    def generate(weights_file: Path | None) -> list[int]:
        runner = load_models(config, ignore_report, 1, weights_file).make_runner(ignore_report, None)
        scheduler = make_scheduler(config, runner)
        scheduler.receive(user_msg(1, list(range(5, 25)), 12, ignore_eos=True))
        token_ids: list[int] = []
        while (batch := scheduler.schedule()) is not None:
            scheduler.commit(runner.launch(batch).result())
            replies = [reply for reply in scheduler.pop_replies() if isinstance(reply, DetokenizeMsg)]
            token_ids += [token_id for reply in replies for token_id in unpack_int32(reply.token_ids)]
        return token_ids

    expected = generate(None)
    assert len(expected) == 12
    assert find_shared_models(config, ignore_report, 1, path) is None
    assert generate(path) == expected
    monkeypatch.setattr(weight_cache, "load_weights", never)
    assert generate(path) == expected
    assert find_shared_models(config, ignore_report, 1, path) is not None


def test_memory_that_is_there_already_is_kept_and_what_it_held_is_not_found_half_overwritten(path: Path):
    path.write_bytes(b"\xff" * (8 << 20))
    first = WeightMemory(path, OURS)
    expected = parts_of(make_weights())
    assert parts_of(first.load(make_weights, ignore_report, lambda: 8 << 20)) == expected
    end(first)
    size = path.stat().st_size

    def fail() -> Weights:
        empty_huge((1000,), torch.uint8).fill_(7)
        raise BootError("no more")

    memory = WeightMemory(path, OTHERS)
    with pytest.raises(BootError, match="no more"):
        memory.load(fail, ignore_report, lambda: size - weight_memory.HEADER.size - ALIGNMENT)
    assert path.stat().st_size == size, "the same as before, so the header alone tells"
    assert path.stat().st_blocks * 512 >= size, "it has been given back and asked for again"
    end(memory)
    assert WeightMemory(path, OURS).find() is None
