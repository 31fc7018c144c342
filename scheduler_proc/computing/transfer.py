"""Columns of a step on their way to the device: in one copy, for which the host does not wait."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

ALIGNMENT = 16
"""Bytes. Triton reads vectors from an address that is a multiple of it."""

TORCH_DTYPES = {"int32": torch.int32, "int64": torch.int64, "float32": torch.float32}


def send_arrays(arrays: Sequence[np.ndarray], device: torch.device) -> tuple[Tensor, ...]:
    """Returns copies of the arrays on `device`, views of one buffer; a GPU copies behind what is in flight there."""
    if not arrays:
        return ()
    starts = [0]
    for values in arrays:
        starts.append(starts[-1] + -(-values.nbytes // ALIGNMENT) * ALIGNMENT)
    # Pinned memory that a copy in flight reads is not given out again before that copy has ended.
    host = torch.empty(starts.pop(), dtype=torch.uint8, pin_memory=device.type == "cuda")
    host_bytes = host.numpy()
    for start, values in zip(starts, arrays, strict=True):
        host_bytes[start : start + values.nbytes] = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    sent = host.to(device, non_blocking=True)
    return tuple(
        sent[start : start + values.nbytes].view(TORCH_DTYPES[values.dtype.name]).view(values.shape)
        for start, values in zip(starts, arrays, strict=True)
    )
