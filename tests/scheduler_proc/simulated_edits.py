"""Changes to logits as plain values: read from a step's columns and, without any columns, from a request."""

import math
from array import array
from collections.abc import Collection, Sequence
from typing import NamedTuple

from messages.columns import unpack_int32
from messages.ring.requests import SamplingParams
from messages.ring.steps import LogitsProcessing
from scheduler_proc.deciding.sampling.dry import DryPenalty

Penalties = tuple[float, float, float, tuple[int, ...], int]
"""Repetition, frequency, presence, the tokens so far, and how many of them are the prompt."""


class Edits(NamedTuple):
    """What changes the logits of one row; `biases` are in ascending order."""

    allowed: tuple[int, ...] = ()
    banned: frozenset[int] = frozenset()
    biases: tuple[tuple[int, float], ...] = ()
    penalties: Penalties | None = None


NOTHING = Edits()


def read_edits(columns: LogitsProcessing | None) -> dict[int, Edits]:
    """Returns the changes by row, and asserts what `LogitsProcessing` promises."""
    if columns is None:
        return {}
    allowed_rows, bias_rows = list(unpack_int32(columns.allowed_rows)), list(unpack_int32(columns.bias_rows))
    penalty_rows = list(unpack_int32(columns.penalty_rows))
    bitmask_rows = list(unpack_int32(columns.bitmask_rows))
    assert allowed_rows or bias_rows or penalty_rows or bitmask_rows, "no changes are told as None"
    assert bitmask_rows == sorted(set(bitmask_rows))
    assert len(columns.bitmasks) == 4 * columns.num_mask_words * len(bitmask_rows)
    assert allowed_rows == sorted(set(allowed_rows))
    assert penalty_rows == sorted(set(penalty_rows))
    assert bias_rows == sorted(bias_rows)
    allowed = dict(zip(allowed_rows, _groups(columns.num_allowed, columns.allowed_ids), strict=True))
    for index, row in enumerate(bitmask_rows):
        allowed[row] = _both(allowed.get(row, ()), _ids_in(columns.bitmasks, index, columns.num_mask_words))
    biases: dict[int, list[tuple[int, float]]] = {}
    bias_ids, bias_values = unpack_int32(columns.bias_ids), array("f", columns.bias_values)
    for row, token_id, value in zip(bias_rows, bias_ids, bias_values, strict=True):
        biases.setdefault(row, []).append((token_id, value))
    floats = (columns.repetition_penalties, columns.frequency_penalties, columns.presence_penalties)
    histories = _groups(columns.num_history, columns.history_ids)
    num_prompt = unpack_int32(columns.num_history_prompt)
    entries = zip(*(array("f", column) for column in floats), histories, num_prompt, strict=True)
    penalties: dict[int, Penalties] = dict(zip(penalty_rows, entries, strict=True))
    return {
        row: _edits(allowed.get(row, ()), biases.get(row, []), penalties.get(row))
        for row in {*allowed, *biases, *penalties}
    }


def expected_edits(
    params: SamplingParams,
    token_ids: Sequence[int],
    num_prompt_tokens: int,
    eos_token_ids: Sequence[int],
    of_grammar: Collection[int] | None = None,
) -> Edits:
    """Returns what a request changes about the token that comes after `token_ids`."""
    biases = list(zip(unpack_int32(params.bias_ids), array("f", params.bias_values), strict=True))
    if len(token_ids) - num_prompt_tokens < params.min_tokens:
        biases += [(token_id, -math.inf) for token_id in (*eos_token_ids, *params.stop_token_ids)]
    for word in params.bad_word_ids:
        *beginning, last = unpack_int32(word)
        output = list(token_ids[num_prompt_tokens:])
        if output[max(0, len(output) - len(beginning)) :] == beginning:
            biases.append((last, -math.inf))
    if params.dry is not None:
        biases += DryPenalty(params.dry).penalties(array("i", token_ids)).items()
    penalties = None
    if (params.repetition_penalty, params.frequency_penalty, params.presence_penalty) != (1, 0, 0):
        floats = array("f", (params.repetition_penalty, params.frequency_penalty, params.presence_penalty))
        penalties = (floats[0], floats[1], floats[2], tuple(token_ids), num_prompt_tokens)
    allowed = tuple(unpack_int32(params.allowed_token_ids))
    return _edits(allowed if of_grammar is None else _both(allowed, of_grammar), biases, penalties)


def _both(allowed: tuple[int, ...], of_grammar: Collection[int]) -> tuple[int, ...]:
    """Returns what both allow; a token that nothing has where that is none, for an empty tuple stands for all."""
    return tuple(sorted(set(allowed or of_grammar).intersection(of_grammar))) or (-1,)


def _ids_in(bitmasks: bytes, index: int, num_words: int) -> set[int]:
    bits = int.from_bytes(bitmasks[4 * num_words * index :][: 4 * num_words], "little")
    return {token_id for token_id in range(32 * num_words) if bits >> token_id & 1}


def _edits(allowed: tuple[int, ...], biases: list[tuple[int, float]], penalties: Penalties | None) -> Edits:
    banned = frozenset(token_id for token_id, value in biases if value == -math.inf)
    return Edits(allowed, banned, tuple(sorted(bias for bias in biases if bias[1] != -math.inf)), penalties)


def _groups(counts: bytes, values: bytes) -> list[tuple[int, ...]]:
    """Returns the values of each entry, and asserts that none are left over."""
    ids, groups, start = unpack_int32(values), list[tuple[int, ...]](), 0
    for count in unpack_int32(counts):
        groups.append(tuple(ids[start : start + count]))
        start += count
    assert start == len(ids), "values belong to no row"
    return groups
