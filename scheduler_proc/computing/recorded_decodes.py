"""The forward passes of decode steps on a CPU, recorded as C calls: one recording for each number of rows.

The first step of so many rows is computed as any other, and recorded; later ones are made again from C (decision 0026).

Shape legend: R rows, P pages a row, V vocabulary.
"""

import logging
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernels.cpu.recording import Recording, record
from messages.steps import Batch
from scheduler_proc.computing.decoder import Decoder
from scheduler_proc.computing.kv_cache import KVCache
from scheduler_proc.computing.packed_columns import PackedColumns
from scheduler_proc.computing.step_inputs import StepInputs, only_samples, read_columns
from scheduler_proc.computing.workspace import Workspace

log = logging.getLogger("sluice.recorded_decodes")


class RecordedDecodes:
    """Computes the logits of steps in which each row decodes; `num_pages` are those of the longest request."""

    def __init__(self, decoder: Decoder, cache: KVCache, workspace: Workspace, max_rows: int, num_pages: int):
        self._decoder = decoder
        self._cache = cache
        self._workspace = workspace
        self._max_rows = max_rows
        columns = PackedColumns(
            {
                "token_ids": (torch.int32, (max_rows,)),
                "positions": (torch.int32, (max_rows,)),
                "slots": (torch.int64, (max_rows,)),
                "decode_page_tables": (torch.int32, (max_rows, num_pages)),
                "decode_num_keys": (torch.int32, (max_rows,)),
            }
        )
        memory = torch.empty(columns.num_bytes, dtype=torch.uint8)
        self._tensors, self._arrays = columns.tensors(memory), columns.arrays(memory)
        self._recordings: dict[int, tuple[Recording, Tensor]] = {}
        self._can_record = True

    def logits(self, batch: Batch) -> Tensor | None:
        """Returns the step's logits [R, V], which the next step overwrites; `None`: it is no step for this.

        Raises `MemoryError`.
        """
        num_rows = batch.num_decode_rows
        if not self._can_record or num_rows > self._max_rows or not only_samples(batch):
            return None
        self._write(batch)
        recorded = self._recordings.get(num_rows)
        if recorded is None:
            return self._record(num_rows)
        recording, logits_RV = recorded
        recording.replay()
        return logits_RV

    def _write(self, batch: Batch) -> None:
        """Puts the step's columns where recordings read them. Behind a row's pages a table holds anything."""
        columns, num_rows = read_columns(batch), batch.num_decode_rows
        for name, array in self._arrays.items():
            if name == "decode_page_tables":
                width = min(array.shape[1], batch.num_pages_per_row)
                array[:num_rows, :width] = columns[name][:, :width]
            else:
                array[:num_rows] = columns[name]

    def _record(self, num_rows: int) -> Tensor:
        rows: dict[str, Any] = {name: tensor[:num_rows] for name, tensor in self._tensors.items()}
        nothing = torch.from_numpy(np.zeros(0, np.int32))
        step = StepInputs(
            num_rows,
            token_sources=nothing,
            prefill_page_tables=nothing,
            prefill_query_lens=nothing,
            prefill_context_lens=nothing,
            head_tokens=nothing,
            all_go_to_head=True,
            **rows,
        )
        activations, room_RV = self._workspace.activations(num_rows), self._workspace.logits(num_rows)
        assert room_RV is not None

        def compute() -> Tensor:
            return self._decoder.logits(self._decoder.forward(step, self._cache, activations), room_RV)

        logits_RV, recording, other = record(compute)
        if recording is None:
            self._can_record = False
            log.info("decode steps are not recorded: %s computes in them", other)
        else:
            self._recordings[num_rows] = recording, logits_RV
        return logits_RV
