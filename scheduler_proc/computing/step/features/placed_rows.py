"""Rows of spans that replace the embeddings of tokens in steps with prompts (`model/span_rows.py`)."""

from operator import attrgetter

import torch

from scheduler_proc.computing.step.inputs import InputColumn, StepFeature, only_column

PLACED_ROWS = StepFeature(
    "placed_rows",
    {"placed_rows": InputColumn(torch.int32, "token", -1, attrgetter("placed_rows"))},
    is_in=attrgetter("placed_rows"),
    limit=lambda _config, _model, role: role == "main",
    make_view=only_column,
    captured="never",
    dummy=lambda *_: {"placed_rows": b""},
)
"""int32 [T]: the token's row in the buffer, -1: none."""
