"""The forward passes of steps on a GPU, launched so that the next step can be planned while they run.

All columns of a step go to the device in one copy. The forward pass is a captured graph where the step fits one of the
shapes of `step/shapes.py`, else it is launched operation by operation. The host waits for nothing.

Shape legend: N tokens that go to the head, E embedding size.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from kernels.operations.take_tokens import take_tokens
from messages.ring.steps import Batch
from scheduler_proc.computing.backends.cuda.attention_plans import AttentionPlans
from scheduler_proc.computing.backends.cuda.captured_steps import CapturedSteps
from scheduler_proc.computing.backends.cuda.device import CudaDevice
from scheduler_proc.computing.backends.cuda.host_parts import GpuHostParts, open_host_parts
from scheduler_proc.computing.device import Forward
from scheduler_proc.computing.kv_cache.kv_tensors import KVTensors
from scheduler_proc.computing.model.decoder import Decoder
from scheduler_proc.computing.report import Report
from scheduler_proc.computing.sampling.logits_processing import fill_histories
from scheduler_proc.computing.sampling.results import Forwarded, head_slots
from scheduler_proc.computing.step.inputs import StepInputs
from scheduler_proc.computing.step.packed_columns import PackedColumns
from scheduler_proc.computing.step.packing import StepShape, pack_step, shape_of, view_step
from scheduler_proc.computing.step.shapes import StepLimits, StepShapes

MORE_GRAPH_BYTES = 4 << 20
"""Memory of a graph in addition to the shared pool: an estimate, for graphs that are not captured yet."""


class GpuForwardPasses:
    """The forward passes of `decoder` over `cache`.

    `attention` plans what each program of the attention kernels computes. Without it the host has to wait for a step's
    columns: nothing can be captured, and nothing launched ahead.
    """

    def __init__(
        self,
        decoder: Decoder,
        cache: KVTensors,
        device: CudaDevice,
        limits: StepLimits,
        attention: AttentionPlans | None,
        may_overlap: bool,
    ):
        self._decoder = decoder
        self.cache = cache
        self._device = device
        self._attention = attention
        self._shapes = StepShapes(limits)
        self.host: GpuHostParts | None = open_host_parts(device, decoder, limits)
        self.last_tokens: Tensor | None = None
        self.can_plan_ahead = False
        self.captured: CapturedSteps | None = None
        if attention is not None:
            if may_overlap:
                self.last_tokens = torch.zeros(limits.max_num_seqs, dtype=torch.int32, device=device.torch_device)
            # Not the dtype of the cache, which may hold codes.
            like_NE = torch.empty(
                (0, decoder.model.hidden_size), dtype=decoder.activation_dtype, device=device.torch_device
            )
            self.captured = CapturedSteps(device, self._shapes, attention, like_NE)

    def prepare(self, batch: Batch, columns: Mapping[str, np.ndarray]) -> Forward:
        """Packs the step's columns, followed by the columns of its sampling plan, into one host buffer."""
        captured = None if self.captured is None else self.captured.find(batch, self._decoder)
        shape = self._exact_shape(batch) if captured is None else captured.shape
        inputs = shape.columns() if captured is None else captured.columns
        sampling = PackedColumns.like(columns)
        host = self._device.allocate_host(inputs.num_bytes + sampling.num_bytes)
        arrays = inputs.arrays(host)
        pack_step(batch, shape, arrays)
        if self._attention is not None:
            self._attention.pack(batch, shape, arrays)
        sampling.write(columns, host[inputs.num_bytes :])

        @torch.inference_mode()
        def forward() -> Forwarded:
            data = self._device.send(host)
            num_sampled, slots_S, slots_Q = batch.num_sampled, None, None
            if captured is None:
                step = self._view(shape, inputs.tensors(data))
                hidden_NE, (slots_S, slots_Q) = self._forward(step), head_slots(step, num_sampled)
            else:
                hidden_NE = captured.run(data)
            sampling_columns = sampling.tensors(data[inputs.num_bytes :])
            if self.last_tokens is not None:
                fill_histories(sampling_columns, self.last_tokens)
            # Without columns each row only needs its likeliest token.
            best_S = None if columns else self._decoder.best_tokens(hidden_NE[:num_sampled])
            logits_SV = hidden_NE[:0]
            if best_S is None:
                logits_SV = self._decoder.logits(hidden_NE[:num_sampled], None, slots_S)
            return Forwarded(logits_SV, hidden_NE[num_sampled:], sampling_columns, head_slots=slots_Q, best=best_S)

        return forward

    def capture(self, report: Report, is_rehearsal: bool = False) -> int:
        """Captures the graphs, in a rehearsal only the largest ones; returns the bytes that all graphs take.

        Raises if a forward pass fails; steps are then launched operation by operation. Without `attention` there is
        nothing to capture.
        """
        if self.captured is None:
            return 0
        shapes = self._shapes.largest() if is_rehearsal else self._shapes.all()
        num_estimated = 0 if self.host is not None else len(self._shapes.all()) - len(shapes)
        if self.host is not None:
            shapes = self.host.choose_shapes(self._shapes.all())
        with torch.inference_mode():
            num_bytes = self.captured.capture(shapes, self._forward, report)
        return num_bytes + num_estimated * MORE_GRAPH_BYTES

    def _exact_shape(self, batch: Batch) -> StepShape:
        shape = shape_of(batch)
        if self._attention is None:
            return shape
        return self._attention.planned(shape, self._shapes.places(max(1, shape.num_decode_rows)))

    def _view(self, shape: StepShape, tensors: dict[str, Tensor]) -> StepInputs:
        inputs = view_step(shape, tensors)
        return inputs if self._attention is None else self._attention.add(inputs, shape, tensors)

    def _forward(self, step: StepInputs) -> Tensor:
        """Returns what the head reads, [N, E]."""
        if step.num_decode_rows and self.last_tokens is not None:
            take_tokens(step.token_ids, step.future_token_indices, self.last_tokens)
        if self.host is not None:
            step = replace(step, host=self.host)
        return self._decoder.forward(step, self.cache.layers, hidden_SE=self.cache.hidden)
