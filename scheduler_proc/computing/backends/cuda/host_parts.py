"""The parts of steps that the host computes for a GPU: experts in its memory (decision 0166).

Their inputs are copied to pinned memory, and their results from there. The host waits for an event behind the copies,
while the GPU computes what was launched after them. A captured step is one graph up to each place where the host acts.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from kernels.cpu.capture import capture_calls
from scheduler_proc.computing.backends.cuda.device import CudaDevice, HostEvent, Work
from scheduler_proc.computing.model.decoder import Decoder
from scheduler_proc.computing.model.expert_description import find_host_layers
from scheduler_proc.computing.model.workspace import Activations, make_activations, room_sizes
from scheduler_proc.computing.step.packing import StepShape
from scheduler_proc.computing.step.shapes import StepLimits

MAX_CAPTURED_ROWS = 32
"""With more rows, launches take a small part of the host's time, and each graph would take memory for nothing."""


class GpuHostParts:
    """The `HostParts` of a GPU, one after another in `room`. While models are loaded, the host computes nothing."""

    def __init__(self, device: CudaDevice, room: Activations):
        self._device = device
        self.is_loading = True
        pinned = {name: self._pin(getattr(room, name)) for name in ("normed", "routes", "update")}
        self._room = replace(room, **pinned)

    def begin(
        self, normed_TE: Tensor, logits_TX: Tensor, compute: Callable[[Any], None], *, is_overlapped: bool
    ) -> Callable[[], Tensor]:
        device, room, event = self._device, self._room.take(len(normed_TE)), self._device.new_event()
        assert room.normed is not None
        assert room.routes is not None
        assert logits_TX.dtype == normed_TE.dtype
        device.copy_out(normed_TE, room.normed)
        device.copy_out(logits_TX, room.routes.view(-1).view(logits_TX.dtype)[: logits_TX.numel()].view_as(logits_TX))
        if is_overlapped:
            device.on_host(event.record)
        return partial(self._finish, event, room, compute, is_overlapped)

    def choose_shapes(self, shapes: Sequence[StepShape]) -> list[StepShape]:
        """Returns the shapes that are worth a capture."""
        return [one for one in shapes if not one.num_prefill_tokens and one.num_decode_rows <= MAX_CAPTURED_ROWS]

    def _finish(self, event: HostEvent, room: Activations, compute: Callable[[Any], None], is_recorded: bool) -> Tensor:
        run: Work = partial(compute, room)
        if self._device.is_capturing:
            run = _replayed(run)

        def work() -> None:
            if not is_recorded:
                event.record()
            event.synchronize()
            if not self.is_loading:
                run()

        self._device.on_host(work)
        assert room.update is not None
        return self._device.copy_in(room.update)

    def _pin(self, tensor: Tensor) -> Tensor:
        pinned = self._device.allocate_host(tensor.nbytes).view(tensor.dtype).view(tensor.shape)
        return pinned.zero_()


def _replayed(compute: Work) -> Work:
    """Returns the same work, whose calls of C kernels are replayed from C after the first time."""
    known: list[Work] = []

    def run() -> None:
        if known:
            known[0]()
            return
        _, calls, _ = capture_calls(compute)
        known.append(compute if calls is None else calls.replay)

    return run


def open_host_parts(device: CudaDevice, decoder: Decoder, limits: StepLimits) -> GpuHostParts | None:
    """Returns what computes the experts that a model has in the host's memory, `None` if it has none there."""
    model, layers = decoder.model, find_host_layers(decoder.model.layers)
    if not layers:
        return None
    max_tokens = limits.max_num_batched_tokens + limits.max_num_seqs
    sizes = room_sizes(layers, model.hidden_size)
    return GpuHostParts(device, make_activations(sizes, decoder.activation_dtype, max_tokens))
