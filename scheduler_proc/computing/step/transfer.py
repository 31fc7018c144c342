"""Columns of a step on their way to the device: in one copy, for which the host does not wait."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from scheduler_proc.computing.step.packed_columns import PackedColumns


def send_arrays(arrays: Sequence[np.ndarray], device: torch.device) -> tuple[Tensor, ...]:
    """Returns copies of the arrays on `device`, views of one buffer; a GPU copies behind what is in flight there."""
    if not arrays:
        return ()
    named = {str(index): values for index, values in enumerate(arrays)}
    columns = PackedColumns.like(named)
    # Pinned memory that a copy in flight reads is not given out again before that copy has ended.
    host = torch.empty(columns.num_bytes, dtype=torch.uint8, pin_memory=device.type == "cuda")
    columns.write(named, host)
    return tuple(columns.tensors(host.to(device, non_blocking=True)).values())
