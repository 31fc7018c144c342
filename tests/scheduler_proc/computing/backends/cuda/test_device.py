from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch

from messages.errors import BootError
from scheduler_proc.computing.backends.cuda.device import CudaDevice, _OnItsWay


class BrokenEvent:
    """What an event is after a kernel has gone astray."""

    def synchronize(self) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")


def test_a_gpu_that_has_failed_ends_the_process() -> None:
    """No handler of `Exception` may take it for the failure of a step: all later steps would fail as well."""
    event: Any = BrokenEvent()
    with pytest.raises(SystemExit, match="the GPU has failed: CUDA error: an illegal memory access"):
        _OnItsWay(torch.empty(1), [], event).wait()


def test_columns_are_sent_next_to_the_step_before_and_kept_until_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy has its own stream, the work waits for it, and its memory is not given out again before work ends."""
    notes: list[tuple[Any, ...]] = []

    class Stream:
        def __init__(self, name: str):
            self.name = name

        def wait_stream(self, other: "Stream") -> None:
            notes.append((self.name, "waits for", other.name))

    class Sent:
        def record_stream(self, stream: Stream) -> None:
            notes.append(("kept for", stream.name))

    class Host:
        def to(self, device: torch.device, non_blocking: bool) -> Sent:
            notes.append(("copied on", active[-1].name, non_blocking))
            return Sent()

    @contextmanager
    def use(stream: Stream) -> Iterator[None]:
        active.append(stream)
        yield
        active.pop()

    active = [Stream("work")]
    names = iter(("sending", "fetching"))
    monkeypatch.setattr(torch.cuda, "Stream", lambda _: Stream(next(names)))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: active[-1])
    monkeypatch.setattr(torch.cuda, "stream", use)
    host: Any = Host()
    CudaDevice(torch.device("cuda:0")).send(host)
    assert notes == [("copied on", "sending", True), ("work", "waits for", "sending"), ("kept for", "work")]


def fail(*_: object) -> None:
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


def test_an_earlier_fault_that_shows_at_a_launch_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the step that is launched then, and each of its rows when they are run apart, would be blamed for it."""
    monkeypatch.setattr(torch.cuda, "Stream", lambda _: None)
    device = CudaDevice(torch.device("cuda:0"))
    work: Any = fail
    monkeypatch.setattr(torch.cuda, "synchronize", fail)
    with pytest.raises(SystemExit, match="the GPU has failed: CUDA error: an illegal memory access"):
        device.submit(work)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    with pytest.raises(RuntimeError, match="an illegal memory access"):
        device.submit(work)


def test_a_capture_that_fails_reports_what_failed_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of such a capture raises, too, and names nothing. No step may run after it: memory would be lost."""

    @contextmanager
    def graph(*_: object, **__: object) -> Iterator[None]:
        try:
            yield
        finally:
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")

    monkeypatch.setattr(torch.cuda, "Stream", lambda _: None)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: None)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "graph", graph)
    device = CudaDevice(torch.device("cuda:0"))
    with pytest.raises(BootError, match=r"an illegal memory access was encountered\. Start with --enforce-eager"):
        device.capture(fail, None)
    with pytest.raises(BootError, match="due to a previous error"):
        device.capture(lambda: None, None)
