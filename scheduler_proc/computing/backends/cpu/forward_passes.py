"""The forward passes of steps on a CPU: those in which each token yields a next one are captured and replayed.

There is one capture for each number of tokens and set of features. The first step with these is computed call by call,
and its C calls are captured; later ones are replayed from C (decision 0026). Draft tokens are decode rows (decision
0045).

Shape legend: R rows, S rows that sample, N tokens that go to the head, E embedding size, V vocabulary.
"""

import logging
from collections.abc import Mapping
from functools import partial

import numpy as np
import torch
from torch import Tensor

from kernels.cpu.capture import CapturedCalls, capture_calls
from kernels.cpu.repeated_calls import Repeats
from kernels.operations.sample import draw
from messages.columns import unpack_int32, unpack_int64
from messages.ring.steps import Batch
from scheduler_proc.computing.backends.cpu.device import CpuDevice
from scheduler_proc.computing.device import Forward
from scheduler_proc.computing.kv_cache.kv_tensors import KVTensors
from scheduler_proc.computing.model.decoder import Decoder
from scheduler_proc.computing.model.description import ModelDescription
from scheduler_proc.computing.model.workspace import Workspace
from scheduler_proc.computing.sampling.results import Forwarded, head_slots
from scheduler_proc.computing.step.inputs import StepInputs
from scheduler_proc.computing.step.packing import (
    NO_ROWS,
    StepShape,
    columns_of,
    make_step_inputs,
    only_samples,
    pack_step,
    view_step,
)
from scheduler_proc.computing.step.rewritten_batches import as_decode_rows
from scheduler_proc.computing.step.shapes import StepLimits

CPU = torch.device("cpu")

NO_LOGITS = torch.empty(0, 0)
"""The logits of a stage that has no head."""

MIN_CAPTURED_TOKENS = 64
"""The minimum number of tokens with room: a step of few rows may have many draft tokens."""

MAX_ROWS_AHEAD = 1
"""The maximum number of rows of a step that runs while the next one is planned. With more rows the other processes have
more to do; on the cores of the step's threads that costs more than planning in parallel saves."""

DRAW_COLUMNS = {"temperatures": torch.float32, "seeds": torch.int64, "positions": torch.int64}
"""The columns of a `SamplingPlan` that `draw` takes for plain rows, in its order."""

CaptureKey = tuple[frozenset[str], int]
"""The features of a step, and the number of its rows."""

log = logging.getLogger("sluice.cpu_forward_passes")


def open_workspace(model: ModelDescription, dtype: torch.dtype, limits: StepLimits) -> Workspace:
    """Returns the workspace of steps within `limits`, which takes no memory before it is used."""
    max_rows = max(limits.max_num_seqs, MIN_CAPTURED_TOKENS)
    return Workspace(model, dtype, max(limits.max_num_batched_tokens, max_rows), max_rows)


class CpuForwardPasses:
    """The forward passes of `decoder` over `cache`. Activations and logits are in one workspace."""

    def __init__(
        self, decoder: Decoder, cache: KVTensors, device: CpuDevice, limits: StepLimits, *, may_overlap: bool = False
    ):
        self.last_tokens: Tensor | None = None
        self._decoder = decoder
        self.cache = cache
        self._device = device
        self._max_rows = max(limits.max_num_seqs, MIN_CAPTURED_TOKENS)
        self._workspace = open_workspace(decoder.model, decoder.activation_dtype, limits)
        self._limits = limits
        self._features = None if limits.optional else limits.captures[0]
        """The features of every step; `None` if some steps have others."""
        shape = StepShape(self._max_rows, 0, 0, limits.num_pages, 0, features=limits.captures[0])
        columns = shape.columns()
        memory = torch.empty(columns.num_bytes, dtype=torch.uint8)
        self._tensors, arrays = columns.tensors(memory), columns.arrays(memory)
        pack_step(NO_ROWS, shape, arrays)
        self._table_bytes = 4 * limits.num_pages
        # Python copies plain bytes here, not numpy: after a step has read all weights, each call into a library finds
        # its code and data cold.
        self._columns = [
            (column, arrays[name].reshape(-1).view(np.uint8).data)
            for name, column in columns_of(shape.features).items()
            if column.axis in ("token", "decode row")
        ]
        self._draws = {name: torch.zeros(self._max_rows, dtype=dtype) for name, dtype in DRAW_COLUMNS.items()}
        self._draw_bytes = {name: tensor.numpy().view(np.uint8).data for name, tensor in self._draws.items()}
        self.captures: dict[CaptureKey, tuple[CapturedCalls, Forwarded]] = {}
        self.can_capture = decoder.parallel.size == 1
        """False if something other than C kernels computes in a step of decode rows, or ranks wait for each other."""

        self._pipeline, self._is_last = decoder.pipeline, decoder.pipeline.place.is_last
        self._is_alone = decoder.pipeline.place.num_stages == 1
        self.can_plan_ahead = may_overlap and self.can_capture and self._is_alone and torch.get_num_threads() > 1
        self.repeats = Repeats(decoder.layer_kinds) if self.can_capture else None

    def prepare(self, batch: Batch, columns: Mapping[str, np.ndarray]) -> Forward:
        """Writes a step that can be captured to the memory of captures; it must run before the next one is prepared."""
        forward = self._prepare(batch, columns)
        return forward if self._is_alone else partial(self._pass_on, forward, batch.num_tokens)

    def _pass_on(self, forward: Forward, num_tokens: int) -> Forwarded:
        """Runs the step between the stages before and after this one."""
        room = self._workspace.activations(num_tokens)
        assert room.residual is not None
        parts = [room.residual] if room.layer_inputs is None else [room.residual, room.layer_inputs]
        with self._pipeline.hops(parts):
            forwarded = forward()
            parts[0] = forwarded.hidden
        return forwarded

    def _prepare(self, batch: Batch, columns: Mapping[str, np.ndarray]) -> Forward:
        self._populate(batch)
        is_decode = only_samples(batch)
        if is_decode:
            batch = as_decode_rows(batch)
        num_rows, features = batch.num_decode_rows, None
        if self.can_capture and is_decode and num_rows <= self._max_rows:
            features = self._features
            if features is None:
                features = self._limits.find_capture(batch, self._decoder)
        if features is None:
            return partial(self._forward, make_step_inputs(batch, CPU), batch.num_sampled, copy_columns(columns))
        self._write(batch)
        tensors = self._write_draws(num_rows, columns)
        captured = self.captures.get((features, num_rows))
        if captured is None:
            return partial(self._capture, features, num_rows, tensors)
        if self.can_plan_ahead and num_rows <= MAX_ROWS_AHEAD:
            self._device.has_begun = captured[0].begin()
        return partial(_replay, *captured, tensors)

    def _populate(self, batch: Batch) -> None:
        """Gets memory for the pages and other slots that the step writes to."""
        population, page_size = self._device.population, self.cache.page_size
        if population is not None:
            slots = unpack_int64(batch.slots)
            population.use(max(slots) // page_size, len(slots) // page_size + batch.num_rows)
        population = self._device.slot_population
        if population is not None:
            used = unpack_int32(getattr(batch, self._device.slot_column))
            population.use(max(used), len(used) - used.count(-1))

    @torch.inference_mode()
    def _forward(self, step: StepInputs, num_sampled: int, columns: Mapping[str, Tensor]) -> Forwarded:
        """Runs the step call by call, except for most layers: they repeat the calls of one of their kind."""
        activations = self._workspace.activations(len(step.token_ids))
        repeats = self.repeats if activations.residual is not None else None
        compute_middle = None if repeats is None else repeats.compute
        cache = self.cache
        hidden_NE = self._decoder.forward(step, cache.layers, activations, compute_middle, cache.hidden)
        if not self._is_last:
            return Forwarded(NO_LOGITS, hidden_NE, columns)
        slots_S, slots_Q = head_slots(step, num_sampled)
        logits_SV = self._decoder.logits(hidden_NE[:num_sampled], self._workspace.logits(num_sampled), slots_S)
        return Forwarded(logits_SV, hidden_NE[num_sampled:], columns, head_slots=slots_Q)

    def _write(self, batch: Batch) -> None:
        """Puts the step's columns into the memory of captures. Behind a row's pages its table is stale."""
        row_bytes = 4 * batch.num_pages_per_row
        num_bytes = min(row_bytes, self._table_bytes)
        for column, ours in self._columns:
            theirs = column.read(batch)
            if column.is_table:
                for row, begin in enumerate(range(0, len(theirs), row_bytes)):
                    to = row * self._table_bytes
                    ours[to : to + num_bytes] = theirs[begin : begin + num_bytes]
            else:
                ours[: len(theirs)] = theirs

    def _write_draws(self, num_rows: int, columns: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
        """Writes how plain rows are drawn, at temperature 0 if all are greedy; returns the other columns."""
        if "temperatures" not in columns:
            temperatures = self._draw_bytes["temperatures"]
            temperatures[: 4 * num_rows] = bytes(4 * num_rows)
            return copy_columns(columns)
        for name, ours in self._draw_bytes.items():
            theirs = columns[name].tobytes()
            ours[: len(theirs)] = theirs
        return copy_columns({name: column for name, column in columns.items() if name not in DRAW_COLUMNS})

    @torch.inference_mode()
    def _capture(self, features: frozenset[str], num_rows: int, sampling: Mapping[str, Tensor]) -> Forwarded:
        """Runs the step and `draw` call by call; later steps with this number of rows are replayed, if possible."""
        shape = StepShape(num_rows, 0, 0, 0, num_rows, features=features)
        step = view_step(shape, {name: tensor[:num_rows] for name, tensor in self._tensors.items()})
        activations = self._workspace.activations(num_rows)
        draws = [self._draws[name][:num_rows] for name in DRAW_COLUMNS]

        def compute() -> tuple[Forwarded, Tensor | None]:
            hidden_RE = self._decoder.forward(step, self.cache.layers, activations, None, self.cache.hidden)
            if not self._is_last:
                return Forwarded(NO_LOGITS, hidden_RE, sampling), None
            room_RV = self._workspace.logits(num_rows)
            assert room_RV is not None
            logits_RV = self._decoder.logits(hidden_RE, room_RV)
            return Forwarded(logits_RV, hidden_RE[num_rows:], sampling), draw(logits_RV, *draws)

        (forwarded, tokens_R), calls, other = capture_calls(compute)
        if tokens_R is not None:
            forwarded = forwarded._replace(plain=tokens_R.numpy())
        if calls is None:
            self.can_capture = False
            log.info("decode steps are not captured: %s computes in them", other)
        else:
            self.captures[features, num_rows] = calls, forwarded
        return forwarded


def _replay(calls: CapturedCalls, forwarded: Forwarded, columns: Mapping[str, Tensor]) -> Forwarded:
    calls.replay()
    return forwarded._replace(columns=columns) if columns else forwarded


def copy_columns(columns: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    """Returns copies in the host's memory: torch takes only memory that it may write."""
    return {name: torch.from_numpy(column.copy()) for name, column in columns.items()}
