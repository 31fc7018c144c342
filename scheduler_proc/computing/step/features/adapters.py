"""LoRA adapters: each token has the adapter of its row."""

from operator import attrgetter

import torch

from messages.columns import pack_int32, unpack_int32
from messages.ring.steps import Batch
from scheduler_proc.computing.step.inputs import InputColumn, StepFeature, only_column


def _read_slots(batch: Batch) -> bytes:
    """Returns the slot of each token, none if no row has an adapter."""
    slots = unpack_int32(batch.adapter_slots)
    if len(slots) == batch.num_tokens:
        return batch.adapter_slots
    counts = unpack_int32(batch.query_lens)
    return b"".join([pack_int32([slot]) * count for slot, count in zip(slots, counts, strict=False)])


ADAPTERS = StepFeature(
    "adapters",
    {"adapter_slots": InputColumn(torch.int32, "token", -1, _read_slots)},
    is_in=attrgetter("adapter_slots"),
    limit=lambda config, _, role: role == "main" and config.model.num_lora_slots > 0,
    make_view=only_column,
    captured="both",
    can_replay=lambda decoder: not decoder.adapters.tables,
)
"""int32 [T]: the slot with the token's adapter, -1: none. A step has it if some row has an adapter."""
