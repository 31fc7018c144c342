"""The forward passes that are captured as graphs, one for each of the shapes of `step/shapes.py`.

A graph reads its inputs from, and leaves its output in, the same memory in each replay. All other memory is in one pool
that the graphs share: they never run concurrently.

Shape legend: N tokens that go to the head, E embedding size.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from messages.ring.steps import Batch
from scheduler_proc.computing.backends.cuda.attention_plans import AttentionPlans
from scheduler_proc.computing.backends.cuda.device import CudaDevice, Work
from scheduler_proc.computing.model.decoder import Decoder
from scheduler_proc.computing.report import Report
from scheduler_proc.computing.step.inputs import StepInputs
from scheduler_proc.computing.step.packed_columns import PackedColumns
from scheduler_proc.computing.step.packing import NO_ROWS, StepShape, pack_step, view_step
from scheduler_proc.computing.step.shapes import StepShapes

GIB = 2**30

log = logging.getLogger("sluice.captured_steps")

ComputeHidden = Callable[[StepInputs], Tensor]
"""Returns what the head reads, [N, E]."""


@dataclass(frozen=True)
class CapturedStep:
    """A graph and the memory that it reads and writes."""

    shape: StepShape
    columns: PackedColumns
    inputs: Tensor
    """uint8 [columns.num_bytes]"""
    hidden: Tensor
    """[N, E]"""
    replay: Work

    def run(self, inputs: Tensor) -> Tensor:
        """Launches the step whose columns are in `inputs`; returns its [N, E], which the next replay overwrites."""
        self.inputs.copy_(inputs[: len(self.inputs)])
        self.replay()
        return self.hidden


class CapturedSteps:
    """The graphs; none until `capture`. `like_NE` has the dtype and E of what a forward pass returns."""

    def __init__(self, device: CudaDevice, shapes: StepShapes, attention: AttentionPlans, like_NE: Tensor):
        self._device = device
        self._shapes = shapes
        self._attention = attention
        self._pool = device.new_pool()
        self._captured: dict[StepShape, CapturedStep] = {}
        planned = [self._planned(shape) for shape in shapes.all()]
        num_bytes = max(shape.columns().num_bytes for shape in planned)
        self._inputs = torch.zeros(num_bytes, dtype=torch.uint8, device=device.torch_device)
        self._hidden_NE = like_NE.new_zeros(max(shape.num_head_tokens for shape in planned), like_NE.shape[1])

    def find(self, batch: Batch, decoder: Decoder) -> CapturedStep | None:
        """Returns the smallest captured step with room for `batch`."""
        if not self._captured:
            return None
        shape = self._shapes.find(batch, decoder)
        return None if shape is None else self._captured.get(shape)

    def capture(self, shapes: Sequence[StepShape], forward: ComputeHidden, report: Report) -> int:
        """Captures `forward` in these shapes; returns the bytes that the graphs take.

        If a forward pass fails, there is no graph; raises whatever CUDA, torch or Triton raise. Raises `BootError` if
        its capture fails.
        """
        begin_s, num_bytes = time.monotonic(), 0
        self._device.release_unused()
        free_bytes = self._device.memory()[0]
        try:
            for index, shape in enumerate(shapes):
                report(f"capturing CUDA graphs ({num_bytes / GIB:.2f} GiB)", index / len(shapes))
                self._captured[shape] = self._capture(self._planned(shape), forward)
                self._device.release_unused()
                num_bytes = free_bytes - self._device.memory()[0]
        except Exception:
            self._captured.clear()
            raise
        log.info("%d CUDA graphs in %.1f s, %.2f GiB", len(shapes), time.monotonic() - begin_s, num_bytes / GIB)
        return num_bytes

    def _capture(self, shape: StepShape, forward: ComputeHidden) -> CapturedStep:
        columns = shape.columns()
        inputs, hidden_NE = self._inputs[: columns.num_bytes], self._hidden_NE[: shape.num_head_tokens]
        host = torch.empty(columns.num_bytes, dtype=torch.uint8)
        arrays = columns.arrays(host)
        pack_step(NO_ROWS, shape, arrays)
        self._attention.pack(NO_ROWS, shape, arrays)
        inputs.copy_(host)
        tensors = columns.tensors(inputs)
        step = self._attention.add(view_step(shape, tensors), shape, tensors)

        def work() -> None:
            hidden_NE.copy_(forward(step))

        work()  # compiles kernels and sets up libraries before anything is captured
        return CapturedStep(shape, columns, inputs, hidden_NE, self._device.capture(work, self._pool))

    def _planned(self, shape: StepShape) -> StepShape:
        return self._attention.planned(shape, shape.num_decode_rows)
