"""The ranks that compute a model together, each with a part of every layer (`--tensor-parallel`).

Shape legend: K ranks, T tokens, E embedding size, N rows, P entries of the vocabulary that a rank has, V all of them.
"""

from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as distributed
from torch import Tensor

GLOO_ADDRESS = "127.0.0.1"


class ParallelGroup:
    """One rank's end of the group; `backend` is a process group of torch, `None` for a rank that is alone.

    What is asked of it is asked of all ranks in the same order, with tensors of the same shapes. Where a rank has ended
    or does not answer, the process ends: its engine is started again.
    """

    def __init__(self, rank: int = 0, size: int = 1, backend: Any = None):
        self.rank = rank
        self.size = size
        self._backend = backend

    def all_reduce(self, part_TE: Tensor) -> Tensor:
        """Returns the sum of all ranks' parts, in the memory of this one's.

        On a CPU they are added in the order of ranks, in float32: a token's sum is the same bits in any batch.
        """
        if self.size == 1 or not part_TE.numel():
            return part_TE
        if part_TE.is_cuda:
            self._wait(self._backend.allreduce([part_TE]))
            return part_TE
        first_TE, *others = self._all_gather(part_TE)
        sum_TE = first_TE.float()
        for other_TE in others:
            sum_TE += other_TE
        return part_TE.copy_(sum_TE)

    def gather_columns(self, part_NP: Tensor, num_columns: int) -> Tensor:
        """Returns the ranks' parts side by side [N, V]: the first `num_columns`, those behind them are filling."""
        whole_NV = part_NP.new_empty(len(part_NP), num_columns)
        if whole_NV.numel():
            for parts_NP, columns_NP in zip(
                self._all_gather(part_NP), whole_NV.split(part_NP.shape[1], dim=1), strict=True
            ):
                columns_NP.copy_(parts_NP[:, : columns_NP.shape[1]])
        return whole_NV

    def broadcast(self, tensor: Tensor) -> Tensor:
        """Returns `tensor`, which holds what rank 0's does from now on."""
        if self.size > 1:
            self._wait(self._backend.broadcast(tensor, root=0))
        return tensor

    def smallest(self, number: int, device: torch.device) -> int:
        """Returns the smallest of the ranks' numbers; by then all ranks have got this far."""
        if self.size == 1:
            return number
        return int(self._all_gather(torch.tensor([number], device=device)).min())

    def _all_gather(self, part: Tensor) -> Tensor:
        parts = part.new_empty(self.size, *part.shape)
        self._wait(self._backend._allgather_base(parts.flatten(0, 1), part.contiguous()))
        return parts

    def _wait(self, work: Any) -> None:
        try:
            work.wait()
        except RuntimeError as error:
            raise SystemExit(f"rank {self.rank} has lost the others: {str(error).splitlines()[0]}") from error


ALONE = ParallelGroup()


def join_group(file: Path, rank: int, size: int, device: torch.device, timeout_s: float) -> ParallelGroup:
    """Returns this rank's end when all ranks have come. They find each other through `file`, which is new.

    Gloo connects CPUs through the loopback interface, NCCL connects GPUs. A rank that is waited for longer than
    `timeout_s`, now or later, counts as lost.
    """
    timeout = timedelta(seconds=timeout_s)
    store = distributed.FileStore(str(file), size)  # pyright: ignore[reportPrivateImportUsage]
    store.set_timeout(timeout)
    try:
        if device.type == "cuda":
            options = distributed.ProcessGroupNCCL.Options()
            options._timeout = timeout
            backend = distributed.ProcessGroupNCCL(store, rank, size, options)
        else:
            options = distributed.ProcessGroupGloo._Options()  # pyright: ignore[reportAttributeAccessIssue]
            options._timeout = timeout
            options._devices = [distributed.ProcessGroupGloo.create_device(hostname=GLOO_ADDRESS, lazy_init=False)]
            backend = distributed.ProcessGroupGloo(store, rank, size, options)
    except RuntimeError as error:
        raise SystemExit(f"rank {rank} cannot reach the others: {str(error).splitlines()[0]}") from error
    return ParallelGroup(rank, size, backend)
