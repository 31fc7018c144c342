"""The forward passes of decode steps on a CPU, captured as C calls: one capture for each number of rows.

The first step of so many rows is computed as any other, and captured; later ones are replayed from C (decision 0026).

Shape legend: R rows, V vocabulary.
"""

import logging
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from kernels.cpu.capture import CapturedCalls, capture_calls
from kernels.sample import greedy
from messages.steps import Batch
from scheduler_proc.computing.model.decoder import Decoder
from scheduler_proc.computing.model.kv_tensors import KVTensors
from scheduler_proc.computing.model.workspace import Workspace
from scheduler_proc.computing.step.inputs import NO_ROWS, StepInputs, StepShape, only_samples, pack_step

log = logging.getLogger("sluice.captured_decodes")


class Decoded(NamedTuple):
    """What a step leaves; the next one overwrites it."""

    logits: Tensor
    """[R, V]"""
    likeliest: Tensor
    """int64 [R]: the tokens of `greedy`."""
    likeliest_array: np.ndarray
    """The same memory."""

    def next_tokens(self) -> bytes:
        """Returns the column of `ForwardOutput` where each row gets its likeliest token."""
        return self.likeliest_array.astype(np.int32).tobytes()


class CapturedDecodes:
    """Computes steps in which each row decodes; `num_pages` are those of the longest request."""

    def __init__(self, decoder: Decoder, cache: KVTensors, workspace: Workspace, max_rows: int, num_pages: int):
        self._decoder = decoder
        self._cache = cache
        self._workspace = workspace
        self._max_rows = max_rows
        shape = StepShape(max_rows, num_prefill_tokens=0, num_prefill_rows=0, num_pages=num_pages, num_head_tokens=0)
        columns = shape.columns()
        memory = torch.empty(columns.num_bytes, dtype=torch.uint8)
        self._tensors, arrays = columns.tensors(memory), columns.arrays(memory)
        pack_step(NO_ROWS, shape, arrays)
        self._num_keys, self._table_bytes = arrays["decode_num_keys"], 4 * num_pages
        # Bytes are copied as they are: after a step has read all weights, each call into a library finds its code and
        # data cold.
        self._bytes = {name: array.reshape(-1).view(np.uint8).data for name, array in arrays.items()}
        self._captures: dict[int, tuple[CapturedCalls, Decoded]] = {}
        self._can_capture = True

    def compute(self, batch: Batch) -> Decoded | None:
        """Returns what the step computes; `None`: it is no step for this. Raises `MemoryError`."""
        num_rows = batch.num_decode_rows
        if not self._can_capture or num_rows > self._max_rows or not only_samples(batch):
            return None
        self._write(batch)
        captured = self._captures.get(num_rows)
        if captured is None:
            return self._capture(num_rows)
        calls, decoded = captured
        calls.replay()
        return decoded

    def _write(self, batch: Batch) -> None:
        """Puts the step's columns where captures read them. Behind a row's pages a table is stale."""
        num_rows, num_keys = batch.num_decode_rows, np.frombuffer(batch.context_lens, np.int32)
        for name, column in (("token_ids", batch.token_ids), ("positions", batch.positions), ("slots", batch.slots)):
            self._bytes[name][: len(column)] = column
        np.add(num_keys, 1, out=self._num_keys[:num_rows])
        tables, row_bytes = self._bytes["decode_page_tables"], 4 * batch.num_pages_per_row
        num_bytes = min(row_bytes, self._table_bytes)
        for row in range(num_rows):
            begin, to = row * row_bytes, row * self._table_bytes
            tables[to : to + num_bytes] = batch.page_tables[begin : begin + num_bytes]

    def _capture(self, num_rows: int) -> Decoded:
        columns: dict[str, Any] = {name: tensor[:num_rows] for name, tensor in self._tensors.items()}
        step = StepInputs(num_rows, all_go_to_head=True, **columns)
        activations, room_RV = self._workspace.activations(num_rows), self._workspace.logits(num_rows)
        assert room_RV is not None

        def compute() -> tuple[Tensor, Tensor]:
            logits_RV = self._decoder.logits(self._decoder.forward(step, self._cache, activations), room_RV)
            return logits_RV, greedy(logits_RV)

        with torch.inference_mode():
            (logits_RV, likeliest_R), calls, other = capture_calls(compute)
        decoded = Decoded(logits_RV, likeliest_R, likeliest_R.numpy())
        if calls is None:
            self._can_capture = False
            log.info("decode steps are not captured: %s computes in them", other)
        else:
            self._captures[num_rows] = calls, decoded
        return decoded
