"""Token types: in a pair of texts, tokens of the second one have another type."""

import torch

from messages.columns import pack_int32, unpack_int32
from messages.ring.steps import Batch
from scheduler_proc.computing.step.inputs import InputColumn, StepFeature, only_column


def read_types(batch: Batch) -> bytes:
    """Returns 1 for tokens of second texts, which are in pooled rows of whole prompts, else 0; nothing if all are 0."""
    if batch.pooled is None or not any(batch.pooled.second_starts):
        return b""
    positions, firsts = unpack_int32(batch.positions), unpack_int32(batch.pooled.first_tokens)
    starts = zip((first - positions[first] for first in firsts), unpack_int32(batch.pooled.second_starts), strict=True)
    num_first_text = {start: second for start, second in starts if second}
    types, start = list[int](), 0
    for query_len in unpack_int32(batch.query_lens):
        num_zeros = num_first_text.get(start, query_len)
        types += [0] * num_zeros + [1] * (query_len - num_zeros)
        start += query_len
    return pack_int32(types)


TYPES = StepFeature(
    "token_types",
    {"token_types": InputColumn(torch.int32, "token", 0, read_types)},
    is_in=lambda batch: batch.pooled is not None and any(batch.pooled.second_starts),
    limit=lambda _, model, role: role == "main" and model.num_token_types > 1,
    make_view=only_column,
    captured="never",
)
"""int32 [T]; a step has it if the type of some token is not 0."""
