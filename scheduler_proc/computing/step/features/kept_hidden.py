"""Hidden states that a head of multi-token prediction keeps, and the slots that take them (`Batch.hidden_slots`)."""

from operator import attrgetter

import torch

from scheduler_proc.computing.step.inputs import InputColumn, StepFeature, only_column

KEPT_HIDDEN = StepFeature(
    "kept_hidden",
    {"hidden_slots": InputColumn(torch.int64, "token", -1, attrgetter("hidden_slots"))},
    is_in=attrgetter("hidden_slots"),
    limit=lambda _config, _model, role: role == "mtp",
    make_view=only_column,
)
"""int64 [T]: the slot that takes the head's hidden state after each token; -1 if it is not stored."""
