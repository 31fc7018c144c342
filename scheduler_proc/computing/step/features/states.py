"""Recurrent states: the slots that rows read them from and store them in."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from kernels.arguments.state_rows import StateRows
from messages.columns import pack_int32, unpack_int32
from messages.config.server import Config
from messages.errors import BootError
from messages.ring.steps import Batch
from scheduler_proc.computing.step.inputs import InputColumn, Role, StepFeature, StepInputs


def _read_sources(batch: Batch) -> bytes:
    return batch.state_sources or pack_int32([-1]) * batch.num_rows


def _view(step: StepInputs, columns: Mapping[str, Tensor]) -> StateRows:
    sources = columns["decode_state_sources"], columns["prefill_state_sources"]
    return StateRows(step.num_decode_rows, *sources, step.prefill_query_lens, columns["state_slots"])


def _make_dummy(query_lens: Sequence[int], _columns: Mapping[str, bytes]) -> Mapping[str, bytes]:
    """All rows store the state after their last token in the first slot."""
    return {"state_slots": pack_int32(slot for count in query_lens for slot in (*[-1] * (count - 1), 0))}


def _chain_sources(batch: Batch, counts: Sequence[int]) -> Mapping[str, bytes]:
    """Returns the slot with the state before each token: the row's source, then the slot of the token before it."""
    if not batch.state_slots:
        return {}
    slots, starts = unpack_int32(batch.state_slots), accumulate(counts, initial=0)
    chained = [-1, *slots[:-1]]
    for start, source in zip(starts, unpack_int32(_read_sources(batch)), strict=False):
        chained[start] = source
    return {"state_sources": pack_int32(chained)}


def _has_states(_config: Config, model: Any, role: Role) -> bool:
    if role == "draft" and model.has_states:
        raise BootError("--draft-model: the draft model has recurrent layers, which are not supported for drafts")
    return role == "main" and model.has_states


STATES = StepFeature(
    "states",
    {
        "decode_state_sources": InputColumn(torch.int32, "decode row", -1, _read_sources),
        "prefill_state_sources": InputColumn(torch.int32, "prefill row", -1, _read_sources),
        "state_slots": InputColumn(torch.int32, "token", -1, attrgetter("state_slots")),
    },
    is_in=attrgetter("state_slots"),
    limit=_has_states,
    make_view=_view,
    dummy=_make_dummy,
    as_decode_rows=_chain_sources,
)


def find_state_rows(step: StepInputs) -> StateRows:
    """Returns the recurrent states that the rows read and store. Only for a step of all tokens."""
    rows = step.view(STATES)
    assert rows is not None
    return rows
