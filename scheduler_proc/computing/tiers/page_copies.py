"""K and V of single pages, copied out of the KV cache and back into it between steps, on any device.

States of recurrent layers are copied in the same way: a state slot is a page of other tensors.
Shape legend: L layers, P pages of the cache, B bytes of a page in a layer, N pages that are copied.
"""

from collections import deque
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from scheduler_proc.computing.device import Device, Fetched
from scheduler_proc.computing.sampling.results import Result
from scheduler_proc.computing.tiers.slot_file import SECTOR_BYTES

NUM_SPARE = 4
"""The maximum number of buffers kept for later copies."""


class PageCopies:
    """Copies in both directions run after all previous steps and before all later ones, without being waited for.

    `tensors` [L, …] hold `num_pages` pages each. `will_write`: called before pages are written, as `Device` has it.
    """

    def __init__(
        self,
        tensors: Sequence[Tensor],
        num_pages: int,
        device: Device,
        will_write: Callable[[Sequence[int]], None] = lambda pages: None,
    ):
        self._device = device
        self._will_write = will_write
        self._parts_LPB = [tensor.reshape(tensor.shape[0], num_pages, -1).view(torch.uint8) for tensor in tensors]
        self._sizes = [part.shape[0] * part.shape[2] for part in self._parts_LPB]
        self.page_bytes = sum(self._sizes)
        self.has_own_processor = device.has_own_processor
        self._spare: deque[Tensor] = deque(maxlen=NUM_SPARE)

    def allocate_host(self, num_pages: int) -> Tensor:
        """Returns a buffer for `copy_in`, uint8 [N, page_bytes], aligned to a sector."""
        num_bytes = num_pages * self.page_bytes
        if self.has_own_processor:  # its copies need pinned memory, which is page-aligned
            return self._device.allocate_host(num_bytes).view(num_pages, self.page_bytes)
        buffer = self._device.allocate_host(num_bytes + SECTOR_BYTES)
        start = -buffer.data_ptr() % SECTOR_BYTES
        return buffer[start : start + num_bytes].view(num_pages, self.page_bytes)

    def copy_out(self, pages: Sequence[int]) -> Fetched:
        """Returns the pages' content as one uint8 tensor [N, page_bytes], which may be passed to `release`."""
        host_N = self._device.allocate_host(len(pages) * torch.int64.itemsize).view(torch.int64)
        host_N.copy_(torch.tensor(pages))

        def work() -> Result:
            pages_N = self._device.send(host_N)
            if self.has_own_processor:
                rows = torch.empty((len(pages), self.page_bytes), dtype=torch.uint8, device=pages_N.device)
            else:
                rows = self._take_spare(len(pages))
            for part_LPB, piece in zip(self._parts_LPB, rows.split(self._sizes, dim=1), strict=True):
                piece_NLB = piece.view(len(pages), part_LPB.shape[0], -1)
                torch.index_select(part_LPB.transpose(0, 1), 0, pages_N, out=piece_NLB)
            return [rows]

        return self._device.submit(work)

    def release(self, rows: Tensor) -> None:
        """Returns the memory of `rows` for a later `copy_out`, in any thread: new memory costs more than the copy."""
        if not self.has_own_processor:
            self._spare.append(rows.as_strided((rows.untyped_storage().nbytes() - rows.storage_offset(),), (1,)))

    def copy_in(self, pages: Sequence[int], host: Tensor) -> None:
        """Copies the rows of `host` into the pages; the caller must not use `host` any more."""
        self._will_write(pages)

        def work() -> Result:
            rows = self._device.send(host)
            for page, row in zip(pages, rows, strict=True):
                for part_LPB, piece in zip(self._parts_LPB, row.split(self._sizes), strict=True):
                    part_LPB[:, page].copy_(piece.view(part_LPB.shape[0], -1))
            return [rows[:0]]

        self._device.submit(work)

    def _take_spare(self, num_pages: int) -> Tensor:
        buffer = self._spare.pop() if self._spare else torch.empty(0)
        num_bytes = num_pages * self.page_bytes
        if len(buffer) < num_bytes:
            return self.allocate_host(num_pages)
        return buffer[:num_bytes].view(num_pages, self.page_bytes)
