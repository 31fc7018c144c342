"""DRY, compared with a plain search for the longest repetition, and its published examples."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from messages.columns import pack_int32
from messages.ring.dry import Dry
from scheduler_proc.deciding.sampling.dry import MAX_PENALTY, DryPenalty

IDS = st.lists(st.integers(0, 3), min_size=1, max_size=40)


def dry(**fields: float) -> Dry:
    values = {"multiplier": 0.5, "base": 2.0, "allowed_length": 2, "penalty_last_n": -1, **fields}
    return Dry(**values, sequence_breakers=())  # type: ignore[arg-type]


def penalties(params: Dry, token_ids: list[int], *breakers: int) -> dict[int, float]:
    params = Dry(*(getattr(params, name) for name in Dry.__struct_fields__[:5]), breaker_ids=pack_int32(breakers))
    return DryPenalty(params).penalties(array("i", token_ids))


def plain_penalties(params: Dry, token_ids: list[int], *breakers: int) -> dict[int, float]:
    """The definition: for each earlier place, the number of tokens before it that equal the last ones."""
    window = (
        token_ids
        if params.penalty_last_n < 0
        else token_ids[len(token_ids) - min(params.penalty_last_n, len(token_ids)) :]
    )
    found: dict[int, float] = {}
    for place in range(1, len(window)):
        length = 0
        while (
            length < place and window[place - 1 - length] == window[-1 - length] and window[-1 - length] not in breakers
        ):
            length += 1
        if length >= max(1, params.allowed_length):
            penalty = -min(MAX_PENALTY, params.multiplier * params.base ** (length - params.allowed_length))
            found[window[place]] = min(penalty, found.get(window[place], 0.0))
    return found


@pytest.mark.parametrize(
    ("token_ids", "expected"),
    [
        ([5], {}),
        ([1, 2, 3, 1], {}),
        ([1, 2, 3, 1, 2], {3: -0.5}),
        ([9, 1, 2, 3, 9, 1, 2], {3: -1.0}),
        ([1, 2, 3, 8, 1, 2, 4, 8, 1, 2], {3: -0.5, 4: -1.0}),
        ([7, 7, 7, 7], {7: -1.0}),
        ([300, 1, 2, 3, 300, 1, 2], {3: -1.0}),
    ],
)
def test_what_would_continue_a_repetition(token_ids, expected):
    assert penalties(dry(), token_ids) == expected


def test_no_repetition_reaches_over_a_breaker():
    assert penalties(dry(), [1, 2, 3, 4, 1, 2, 3], 1) == {4: -0.5}
    assert penalties(dry(), [1, 2, 3, 4, 1, 2, 3], 2) == {}
    assert penalties(dry(), [1, 2, 3, 4, 1, 2, 3], 3) == {}
    assert penalties(dry(), [1, 2, 3, 4, 1, 2, 3], 4) == {4: -1.0}


def test_only_the_last_tokens_count():
    assert penalties(dry(penalty_last_n=0), [1, 2, 3, 1, 2]) == {}
    assert penalties(dry(penalty_last_n=4), [1, 2, 3, 1, 2]) == {}
    assert penalties(dry(penalty_last_n=5), [1, 2, 3, 1, 2]) == {3: -0.5}


@given(
    IDS,
    st.integers(0, 4),
    st.sampled_from([-1, 0, 3, 8, 100]),
    st.sampled_from([1.0, 1.5, 2.0, 50.0]),
    st.lists(st.integers(0, 5), max_size=2),
)
def test_all_texts(token_ids, allowed_length, last_n, base, breakers):
    params = dry(allowed_length=allowed_length, penalty_last_n=last_n, base=base)
    got, expected = penalties(params, token_ids, *breakers), plain_penalties(params, token_ids, *breakers)
    assert got == pytest.approx(expected)


def test_a_long_repetition_has_a_penalty_that_logits_bear():
    assert penalties(dry(), [7] * 20_000) == {7: -MAX_PENALTY}
    assert penalties(dry(multiplier=1e-300, base=1.0), [7] * 20_000) == {7: pytest.approx(-1e-300)}
    assert penalties(dry(base=100.0, allowed_length=0), [7] * 20_000) == {7: -MAX_PENALTY}
