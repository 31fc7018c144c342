"""K and V of single pages, copied out of the KV cache and back into it between steps, on any device.

Shape legend: L layers, P pages of the cache, B bytes of a page in a layer, N pages that are copied.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from scheduler_proc.computing.device import Device, Fetched
from scheduler_proc.computing.model.kv_tensors import KVTensors
from scheduler_proc.computing.step.results import Result


class PageCopies:
    """Both copies come after all steps launched before, and before all later ones, and are not waited for."""

    def __init__(self, cache: KVTensors, device: Device):
        self._device = device
        self._parts_LPB = [
            tensor.reshape(tensor.shape[0], cache.num_pages, -1).view(torch.uint8) for tensor in cache.tensors
        ]
        self._sizes = [part.shape[0] * part.shape[2] for part in self._parts_LPB]
        self.page_bytes = sum(self._sizes)
        self.has_own_processor = self._parts_LPB[0].device.type != "cpu"
        """Steps lose nothing to threads of the host."""

    def allocate_host(self, num_pages: int) -> Tensor:
        """Returns room for pages, uint8 [N, page_bytes], for `copy_in`."""
        return self._device.allocate_host(num_pages * self.page_bytes).view(num_pages, self.page_bytes)

    def copy_out(self, pages: Sequence[int]) -> Fetched:
        """Returns what the pages hold now, as one uint8 tensor [N, page_bytes]."""
        host_N = self._device.allocate_host(len(pages) * torch.int64.itemsize).view(torch.int64)
        host_N.copy_(torch.tensor(pages))

        def work() -> Result:
            pages_N = self._device.send(host_N)
            rows = torch.empty((len(pages), self.page_bytes), dtype=torch.uint8, device=pages_N.device)
            for part_LPB, piece in zip(self._parts_LPB, rows.split(self._sizes, dim=1), strict=True):
                piece_NLB = piece.view(len(pages), part_LPB.shape[0], -1)
                torch.index_select(part_LPB.transpose(0, 1), 0, pages_N, out=piece_NLB)
            return [rows]

        return self._device.submit(work)

    def copy_in(self, pages: Sequence[int], host: Tensor) -> None:
        """The pages hold the rows of `host`, which belongs to the copy from now on."""
        self._device.will_write(pages)

        def work() -> Result:
            rows = self._device.send(host)
            for page, row in zip(pages, rows, strict=True):
                for part_LPB, piece in zip(self._parts_LPB, row.split(self._sizes), strict=True):
                    part_LPB[:, page].copy_(piece.view(part_LPB.shape[0], -1))
            return [rows[:0]]

        self._device.submit(work)
