"""The rows of spans in prompts (`messages/ring/spans.py`), which replace the embeddings of their placeholder ids.

A row may have further parts of the same size, which are added to the stream after some layers.

Shape legend: L rows of a span, N rows of the buffer, T tokens of the step, E embedding size, R size of a row.
"""

from array import array
from collections.abc import Callable, Collection

import torch
from torch import Tensor
from torch.nn import functional

from messages.columns import INT32

MAX_ROWS = 16384
"""The room for the rows of all spans: 128 MiB with 4,096 numbers of 2 bytes each. It is allocated with the first."""


class SpanRows:
    """The rows by the digest of their span. Spans that no request needs make room, the least recently placed first.

    Only the thread that launches steps may call it.
    """

    def __init__(self, sizes: tuple[int, int], dtype: torch.dtype, device: torch.device, num_rows: int = MAX_ROWS):
        """`sizes`: E and R."""
        self.find_needed: Callable[[], Collection[bytes]] = set
        """Returns the digests of the spans that requests need."""
        self._hidden_size, row_size = sizes
        self._shape = num_rows, row_size
        self._dtype, self._device = dtype, device
        self._buffer_NR: Tensor | None = None
        self._places: dict[bytes, array[int]] = {}
        self._free: array[int] = array(INT32, range(num_rows))

    def find(self, digest: bytes) -> "array[int]":
        """Returns the places of a span's rows in the buffer; empty if they are not there."""
        return self._places.get(digest, self._free[:0])

    def place(self, digest: bytes, rows_LR: Tensor) -> None:
        """Puts the rows of a span into the buffer. Equal digests have equal rows, so known ones are kept.

        Rows of E numbers have no further parts. Raises `ValueError` for rows of another size, and if the spans of
        requests leave no room.
        """
        if rows_LR.ndim != 2 or rows_LR.shape[1] not in (self._hidden_size, self._shape[1]):
            raise ValueError(f"rows of shape {tuple(rows_LR.shape)} for embeddings of {self._shape[1]}")
        if known := self._places.pop(digest, None):
            self._places[digest] = known
            return
        needed, num_rows = self.find_needed(), len(rows_LR)
        for other in [other for other in self._places if other not in needed]:
            if num_rows > len(self._free):
                self._free += self._places.pop(other)
        if num_rows > len(self._free):
            raise ValueError(f"{num_rows} rows of a span, and room for {len(self._free)} of {self._shape[0]}")
        places, self._free = self._free[:num_rows], self._free[num_rows:]
        self._places[digest] = places
        if self._buffer_NR is None:
            self._buffer_NR = torch.zeros(self._shape, dtype=self._dtype, device=self._device)
        rows_LR = functional.pad(rows_LR.to(self._device, self._dtype), (0, self._shape[1] - rows_LR.shape[1]))
        self._buffer_NR[torch.tensor(places, device=self._device)] = rows_LR

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
