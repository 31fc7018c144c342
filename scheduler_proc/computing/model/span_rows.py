"""The rows of spans in prompts (`messages/ring/spans.py`), which replace the embeddings of their placeholder ids.

A row may have further parts of the same size, which are added to the stream after some layers.

Shape legend: L rows of a span, N rows of the buffer, T tokens of the step, E embedding size, R size of a row.
"""

from array import array
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from messages.columns import INT32
from runtime.row_file import RowFile

MAX_ROWS = 16384
"""The room for the rows of all spans, if they are in no file: 128 MiB with 4,096 numbers of 2 bytes each."""


class SpanRows:
    """A buffer of rows, allocated with the first. With `open_file` it is a file, or has a copy of one on the device.

    Only the thread that launches steps may call it.
    """

    def __init__(self, sizes: tuple[int, int], dtype: torch.dtype, device: torch.device, num_rows: int = MAX_ROWS):
        """`sizes`: E and R."""
        self._hidden_size, self._row_size = sizes
        self.num_rows = num_rows
        self.row_bytes = self._row_size * dtype.itemsize
        self.notes: memoryview | None = None
        self.reserve: Callable[[bytes, int], array[int]] = lambda *_: array(INT32)
        """Returns the places of a span's rows; empty if there is no room. The scheduler sets it."""
        self._dtype, self._device = dtype, device
        self._file: RowFile | None = None
        self._buffer_NR: Tensor | None = None

    def open_file(self, path: Path, num_bytes: int) -> None:
        """Takes over the file at `path` for encodings of `num_bytes`, perhaps with those of a predecessor."""
        self.num_rows = max(1, num_bytes // self.row_bytes)
        self._file = RowFile(path, self.num_rows, self.row_bytes)
        self.notes = self._file.notes
        rows_NR = self._rows_of(self._file)
        if rows_NR.device == self._device:
            self._buffer_NR = rows_NR

    def checksum(self, places: Sequence[int]) -> int:
        """Returns the checksum of the rows that are in the file at these places."""
        assert self._file is not None
        return self._file.checksum(places)

    def load(self, places: Sequence[int]) -> None:
        """Copies rows from the file to the device, if they are not there."""
        assert self._file is not None
        rows_NR = self._rows_of(self._file)
        if rows_NR.device != self._device:
            places_L = torch.tensor(places)
            self._buffer()[places_L.to(self._device)] = rows_NR[places_L].to(self._device)

    def place(self, digest: bytes, rows_LR: Tensor) -> None:
        """Puts rows that no encoder makes into the buffer. Rows of E numbers have no further parts.

        Raises `ValueError` for rows of another size, and if the spans of requests leave no room.
        """
        if rows_LR.ndim != 2 or rows_LR.shape[1] not in (self._hidden_size, self._row_size):
            raise ValueError(f"rows of shape {tuple(rows_LR.shape)} for embeddings of {self._row_size}")
        places_L = torch.tensor(self.reserve(digest, len(rows_LR)), device=self._device)
        rows_LR = functional.pad(rows_LR.to(self._device, self._dtype), (0, self._row_size - rows_LR.shape[1]))
        self._buffer()[places_L] = rows_LR

    def overwrite(self, embedded_TE: Tensor, placed_T: Tensor) -> None:
        """Replaces the embeddings of the tokens whose place in the buffer (int32) is not -1."""
        embedded_TE.copy_(torch.where((placed_T >= 0)[:, None], self._part(0, placed_T), embedded_TE))

    def add_part(self, part: int, stream_TE: Tensor, placed_T: Tensor) -> None:
        """Adds a part of the rows to these tokens of the stream; 0 is the embedding."""
        stream_TE += self._part(part, placed_T).masked_fill_(placed_T[:, None] < 0, 0)

    def _part(self, part: int, placed_T: Tensor) -> Tensor:
        assert self._buffer_NR is not None
        begin = part * self._hidden_size
        return self._buffer_NR[:, begin : begin + self._hidden_size][placed_T.clamp(min=0)]

    def _buffer(self) -> Tensor:
        if self._buffer_NR is None:
            self._buffer_NR = torch.zeros((self.num_rows, self._row_size), dtype=self._dtype, device=self._device)
        return self._buffer_NR

    def _rows_of(self, file: RowFile) -> Tensor:
        return torch.frombuffer(file.rows, dtype=self._dtype).view(self.num_rows, self._row_size)
