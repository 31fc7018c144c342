"""Made up: a number for each row that multiplies the embeddings of its tokens."""

from operator import attrgetter

import torch

from messages.columns import pack_float32, unpack_float32, unpack_int32
from messages.ring.steps import Batch
from scheduler_proc.computing.step.inputs import InputColumn, StepFeature, only_column


def _read_scales(batch: Batch) -> bytes:
    """Returns the number of each token's row."""
    counts = unpack_int32(batch.query_lens)
    scales = unpack_float32(batch.row_scales)
    return b"".join([pack_float32([scale]) * count for scale, count in zip(scales, counts, strict=False)])


ROW_SCALES = StepFeature(
    "row_scales",
    {"row_scales": InputColumn(torch.float32, "token", 1, _read_scales)},
    is_in=attrgetter("row_scales"),
    limit=lambda _config, _model, role: role == "main",
    make_view=only_column,
    captured="never",
)
"""float32 [T]; a step has it if some row has such a number."""
