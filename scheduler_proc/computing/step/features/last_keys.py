"""Spans whose tokens attend to each other in both directions, in steps with prompts."""

from operator import attrgetter

import torch

from scheduler_proc.computing.step.inputs import InputColumn, StepFeature, only_column

LAST_KEYS = StepFeature(
    "last_keys",
    {"last_keys": InputColumn(torch.int32, "token", 0, attrgetter("last_keys"))},
    is_in=attrgetter("last_keys"),
    limit=lambda _config, model, role: role == "main" and model.sees_spans,
    make_view=only_column,
    captured="never",
    dummy=lambda *_: {"last_keys": b""},
)
"""int32 [T]: the last of its row's tokens that each token attends to."""
