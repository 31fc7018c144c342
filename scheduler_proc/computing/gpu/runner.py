"""Runs planned steps on a GPU: launches one and returns, so that the next can be planned while it runs.

A step is one copy of all its columns to the device, the forward pass (a captured graph where its shape is one of
`step_shapes.py`, else operation by operation), head and sampler, and one copy of the results back, beside the next
step. The host waits for nothing but that last copy, and only when it is asked for the result.

Shape legend: S rows that sample, N tokens that go to the head, E embedding size.
"""

import logging
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from kernels.take_tokens import take_tokens
from messages.steps import Batch, ForwardOutput
from scheduler_proc.computing.gpu.attention_plans import AttentionPlans
from scheduler_proc.computing.gpu.captured_steps import CapturedStep, CapturedSteps, Report
from scheduler_proc.computing.gpu.device import Device, Fetched
from scheduler_proc.computing.model.decoder import Decoder
from scheduler_proc.computing.model.kv_tensors import KVTensors
from scheduler_proc.computing.sampling.plan import SamplingPlan, plan_sampling
from scheduler_proc.computing.step.inputs import StepInputs, StepShape, pack_step, shape_of, view_step
from scheduler_proc.computing.step.packed_columns import PackedColumns, join, split
from scheduler_proc.computing.step.results import StepResult, compute_result
from scheduler_proc.computing.step.shapes import StepLimits, StepShapes

MORE_GRAPH_BYTES = 4 << 20
"""What a graph takes of memory beside the pool that all share: an estimate, for those that are not yet captured."""

log = logging.getLogger("sluice.gpu_runner")


@dataclass(frozen=True)
class _PackedStep:
    """A step in the host's memory: its columns, and behind them the arrays of its sampling plan."""

    batch: Batch
    shape: StepShape
    captured: CapturedStep | None
    columns: PackedColumns
    sampling: SamplingPlan
    sampling_columns: PackedColumns
    host: Tensor


class LaunchedStep:
    """A step on its way."""

    def __init__(self, step_id: int):
        self._step_id = step_id
        self.fetched: Fetched | None = None
        self.computed: StepResult | None = None
        """Its result as it is on the device."""

    def result(self) -> ForwardOutput:
        """Waits for the step, and for nothing after it."""
        assert self.fetched is not None
        data = self.fetched.wait()
        assert self.computed is not None
        return self.computed.with_tensors(split(data, self.computed.tensors())).output(self._step_id)


class GpuRunner:
    """Launches steps in order. What a step returns is a function of its `Batch`, the KV cache and its sources' tokens.

    `plans` tell the kernels what each of their programs does. Without them the kernels look into a step's columns
    themselves, and wait for them: nothing can be captured then, and nothing launched ahead.
    """

    drafter = None

    def __init__(
        self,
        decoder: Decoder,
        cache: KVTensors,
        device: Device,
        limits: StepLimits,
        plans: AttentionPlans | None,
        may_overlap: bool,
    ):
        self.num_pages = cache.num_pages
        self.max_num_batched_tokens = limits.max_num_batched_tokens
        self.can_overlap = may_overlap and plans is not None
        self._decoder = decoder
        self._cache = cache
        self._device = device
        self._plans = plans
        self._shapes = StepShapes(limits)
        self._last_tokens = torch.zeros(limits.max_num_seqs, dtype=torch.int32, device=device.torch_device)
        """Those that the newest step samples."""
        self._captured: CapturedSteps | None = None
        if plans is not None:
            like_NE = cache.layers[0].keys.new_empty(0, decoder.config.hidden_size)
            self._captured = CapturedSteps(device, self._shapes, plans, like_NE)

    def launch(self, batch: Batch) -> LaunchedStep:
        """The step will run after all that were launched before. Raises where it cannot be launched."""
        step = self._pack(batch)
        launched = LaunchedStep(batch.step_id)
        launched.fetched = self._device.submit(partial(self._run, step, launched))
        return launched

    def run(self, batch: Batch) -> ForwardOutput:
        """Runs the step and returns its result when it is known."""
        return self.launch(batch).result()

    def capture(self, report: Report, is_rehearsal: bool = False) -> int | None:
        """Records the graphs, in a rehearsal only those that take most memory; returns the bytes that all of them take.

        `None`: it cannot be done, which is logged, and steps are launched operation by operation.
        """
        if self._captured is None:
            return None
        shapes = self._shapes.largest() if is_rehearsal else self._shapes.all()
        try:
            with torch.inference_mode():
                num_bytes = self._captured.capture(shapes, self._forward, report)
        except RuntimeError as error:
            log.warning(
                "CUDA graphs cannot be captured, so steps are launched operation by operation, which is slower: %s "
                "Where memory is short, lower --gpu-memory-utilization or --max-num-seqs; --enforce-eager does not try",
                str(error).split("\n", 1)[0],
            )
            return None
        return num_bytes + (len(self._shapes.all()) - len(shapes)) * MORE_GRAPH_BYTES

    def _pack(self, batch: Batch) -> _PackedStep:
        captured = None if self._captured is None else self._captured.find(batch)
        shape = self._exact_shape(batch) if captured is None else captured.shape
        columns = shape.columns() if captured is None else captured.columns
        sampling = plan_sampling(batch, self._decoder.config.vocab_size)
        sampling_columns = PackedColumns.like(sampling.columns)
        host = self._device.allocate_host(columns.num_bytes + sampling_columns.num_bytes)
        arrays = columns.arrays(host)
        pack_step(batch, shape, arrays)
        if self._plans is not None:
            self._plans.pack(batch, shape, arrays)
        sampling_columns.write(sampling.columns, host[columns.num_bytes :])
        return _PackedStep(batch, shape, captured, columns, sampling, sampling_columns, host)

    def _exact_shape(self, batch: Batch) -> StepShape:
        shape = shape_of(batch)
        if self._plans is None:
            return shape
        return self._plans.planned(shape, self._shapes.places(max(1, shape.num_decode_rows)))

    @torch.inference_mode()
    def _run(self, step: _PackedStep, launched: LaunchedStep) -> Tensor:
        """Launches everything; returns the bytes of the result."""
        data = step.host.to(self._device.torch_device, non_blocking=True)
        hidden_NE = self._forward(self._view(step, data)) if step.captured is None else step.captured.run(data)
        arrays = tuple(step.sampling_columns.tensors(data[step.columns.num_bytes :]).values())
        result = compute_result(self._decoder, hidden_NE, step.batch, step.sampling, arrays)
        self._last_tokens[: len(result.tokens)].copy_(result.tokens)
        launched.computed = result
        return join(result.tensors())

    def _view(self, step: _PackedStep, data: Tensor) -> StepInputs:
        tensors = step.columns.tensors(data)
        inputs = view_step(step.shape, tensors)
        return inputs if self._plans is None else self._plans.add(inputs, step.shape, tensors)

    def _forward(self, step: StepInputs) -> Tensor:
        """Returns what the head reads, [N, E]."""
        if step.num_decode_rows:
            take_tokens(step.token_ids, step.future_token_indices, self._last_tokens)
        return self._decoder.forward(step, self._cache)
