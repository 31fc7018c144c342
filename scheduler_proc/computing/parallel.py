"""Groups of ranks: those that compute layers together, each with a part of every one (`--tensor-parallel`), and all
ranks of an engine.

Shape legend: K ranks, T tokens, E embedding size, N rows, P entries of the vocabulary that a rank has, V all of them.
"""

from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as distributed
from torch import Tensor

TAG = 0
"""Tensors from one rank to another arrive in the order in which they are sent."""


class ParallelGroup:
    """One rank's end of the group; `group` is a process group of torch, `None` for a single rank.

    All ranks make the same calls in the same order, with tensors of the same shapes. If a rank has ended or does not
    answer, the process ends, and its engine is restarted.
    """

    def __init__(self, rank: int = 0, size: int = 1, group: Any = None, *, sums_in_rank_order: bool = True):
        self.rank = rank
        self.size = size
        self._group = group
        self._sums_in_rank_order = sums_in_rank_order

    def all_reduce(self, part_TE: Tensor) -> Tensor:
        """Returns the sum of all ranks' parts, in the memory of this one's.

        With `sums_in_rank_order` they are added in float32: a token's sum is the same bits in any batch.
        """
        if self.size == 1 or not part_TE.numel():
            return part_TE
        if not self._sums_in_rank_order:
            self.wait(self._group.allreduce([part_TE]))
            return part_TE
        first_TE, *others = self._all_gather(part_TE)
        sum_TE = first_TE.float()
        for other_TE in others:
            sum_TE += other_TE
        return part_TE.copy_(sum_TE)

    def gather_columns(self, part_NP: Tensor, num_columns: int) -> Tensor:
        """Returns the first `num_columns` columns of the ranks' parts side by side, [N, V]; the rest is padding."""
        whole_NV = part_NP.new_empty(len(part_NP), num_columns)
        if whole_NV.numel():
            for parts_NP, columns_NP in zip(
                self._all_gather(part_NP), whole_NV.split(part_NP.shape[1], dim=1), strict=True
            ):
                columns_NP.copy_(parts_NP[:, : columns_NP.shape[1]])
        return whole_NV

    def broadcast(self, tensor: Tensor) -> Tensor:
        """Overwrites `tensor` with rank 0's and returns it."""
        if self.size > 1:
            self.wait(self._group.broadcast(tensor, root=0))
        return tensor

    def smallest(self, numbers: Sequence[int], device: torch.device) -> list[int]:
        """Returns the smallest of the ranks' numbers, place by place, once all ranks have called this."""
        return [min(of_ranks) for of_ranks in zip(*self.gather(numbers, device), strict=True)]

    def gather(self, numbers: Sequence[int], device: torch.device) -> list[list[int]]:
        """Returns the numbers of each rank, once all ranks have called this."""
        if self.size == 1:
            return [list(numbers)]
        return self._all_gather(torch.tensor(numbers, device=device)).tolist()

    def send(self, tensor: Tensor, rank: int) -> Any:
        """Begins to send the tensor, which must not change before the returned work is done (`wait`)."""
        return self._group.send([tensor], rank, TAG)

    def receive(self, tensor: Tensor, rank: int) -> None:
        """Overwrites the tensor with the next one that the rank sends here."""
        self.wait(self._group.recv([tensor], rank, TAG))

    def _all_gather(self, part: Tensor) -> Tensor:
        parts = part.new_empty(self.size, *part.shape)
        self.wait(self._group._allgather_base(parts.flatten(0, 1), part.contiguous()))
        return parts

    def wait(self, work: Any) -> None:
        """Waits for what this rank has begun with others; ends the process if one of them has ended."""
        try:
            work.wait()
        except RuntimeError as error:
            raise SystemExit(f"rank {self.rank} has lost the others: {str(error).splitlines()[0]}") from error


ALONE = ParallelGroup()


Connect = Callable[[Any, int, int, timedelta], Any]
"""Takes a store, this rank, the number of ranks and a timeout; returns a process group of torch."""


class Meeting:
    """Where the `size` ranks of an engine find each other: `file`, which must be new.

    A rank that does not answer within `timeout_s`, now or later, counts as lost.
    """

    def __init__(self, file: Path, rank: int, size: int, timeout_s: float):
        self._rank, self._timeout = rank, timedelta(seconds=timeout_s)
        self._store = distributed.FileStore(str(file), size)  # pyright: ignore[reportPrivateImportUsage]
        self._store.set_timeout(self._timeout)

    def join(
        self, name: str, rank: int, size: int, connect: Connect, *, sums_in_rank_order: bool = True
    ) -> ParallelGroup:
        """Returns this rank's end of the group of this name, as its number `rank`, once `size` ranks have joined."""
        if size == 1:
            return ALONE
        try:
            store = distributed.PrefixStore(name, self._store)  # pyright: ignore[reportPrivateImportUsage]
            group = connect(store, rank, size, self._timeout)
        except RuntimeError as error:
            raise SystemExit(f"rank {self._rank} cannot reach the others: {str(error).splitlines()[0]}") from error
        return ParallelGroup(rank, size, group, sums_in_rank_order=sums_in_rank_order)
