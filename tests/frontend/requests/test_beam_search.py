"""Beam search on tables of logprobs. The ring's tests compare it with transformers'."""

from itertools import pairwise
from typing import Any

from frontend.requests.beam_search import BeamRules, BeamSearch

END = 0
Table = dict[tuple[int, ...], dict[int, float]]
"""The logprobs of the next tokens after each output."""


def search(table: Table, width: int, max_tokens: int = 3, **rules: Any) -> list[tuple[tuple[int, ...], float]]:
    """Returns the finished beams with their scores; every output that is asked for must be in the table."""
    found = BeamSearch(BeamRules(width, max_tokens, frozenset({END}), **rules))
    while not found.is_over:
        likeliest = [
            sorted(table[beam.token_ids].items(), key=lambda item: -item[1])[: width + 1] for beam in found.running
        ]
        found.advance(likeliest)
    return [(beam.token_ids, round(beam.score, 6)) for beam in found.finished]


ENDS_EARLY: Table = {
    (): {1: -1.0, 2: -1.5, END: -4.0},
    (1,): {END: -0.5, 3: -1.0, 4: -3.0},
    (2,): {END: -2.0, 3: -0.1, 4: -3.0},
    (1, 3): {3: -0.1, END: -9.0, 4: -8.0},
    (2, 3): {3: -0.1, END: -9.0, 4: -8.0},
}


def test_width_1_is_greedy():
    assert search({(): {1: -0.5, 2: -1.0}, (1,): {2: -0.5, 1: -1.0}, (1, 2): {END: -0.1, 1: -2}}, 1) == [
        ((1, 2, END), round(-1.1 / 3, 6))
    ]


def test_a_beam_overtakes_the_likeliest_first_token():
    table: Table = {(): {1: -0.5, 2: -0.9}, (1,): {1: -2.0, 2: -2.1}, (2,): {1: -0.1, 2: -5.0}}
    assert search(table, 2, max_tokens=2) == [((2, 1), -0.5), ((1, 1), -1.25)]


def test_of_equal_beams_the_first_goes_before():
    table: Table = {(): {5: -1.0, 4: -1.0, 3: -1.0}, (5,): {1: -1.0, 2: -1.0, 3: -1.0}, (4,): {1: -1.0, 2: -1.0}}
    assert [ids for ids, _ in search(table, 2, max_tokens=2)] == [(5, 1), (5, 2)]


def test_an_end_counts_only_among_the_best_and_its_token_in_the_length():
    """After the first step END is third: it has not finished, though later it would have been the best."""
    finished = search(ENDS_EARLY, 2, length_penalty=0.0)
    assert finished[0] == ((1, END), -1.5)
    assert ((END,), -4.0) not in finished


def test_a_length_penalty_above_0_prefers_longer_beams():
    assert search(ENDS_EARLY, 2, length_penalty=0.0)[0][0] == (1, END)
    assert search(ENDS_EARLY, 2, length_penalty=3.0)[0] == ((2, 3, 3), round(-1.7 / 27, 6))


SOON: Table = {
    (): {1: -1.0, END: -1.1, 2: -3.0},
    (1,): {END: -1.0, 1: -0.9, 2: -5.0},
    (2,): {1: -5.0, 2: -6.0, END: -7.0},
    (1, 1): {1: -0.1, END: -0.2, 2: -9.0},
    (1, 2): {1: -1.0, END: -2.0, 2: -9.0},
}


def test_early_stopping_takes_the_first_that_finish():
    assert search(SOON, 2, early_stopping=True) == [((1, END), -1.0), ((END,), -1.1)]


def test_without_early_stopping_it_continues_while_the_best_may_get_better():
    """After two tokens the best beam has a score of -0.95, better than both that have finished."""
    best = round(-2.0 / 3, 6)
    assert search(SOON, 2) == [((1, 1, 1), best), ((1, 1, END), -0.7)]


NEVER: Table = {
    (): {END: -0.5, 1: -1.0, 2: -1.2},
    (1,): {END: -0.2, 1: -1.5, 2: -4.0},
    (2,): {1: -4.0, 2: -6.0, END: -9.0},
    (1, 1): {1: -0.1, 2: -0.2, END: -9.0},
    (1, 2): {1: -0.1, 2: -0.3, END: -9.0},
    (1, 1, 1): {1: 0.0, 2: -0.1, END: -9.0},
    (1, 1, 2): {1: 0.0, 2: -0.1, END: -9.0},
}


def test_never_continues_while_the_longest_beam_could_be_better():
    """At its present length the best beam has lost after two tokens; at the maximum length it has not."""
    short = [((END,), -0.5), ((1, END), -0.6)]
    assert search(NEVER, 2, max_tokens=5) == short
    never = search({**NEVER, **_zeros(4)}, 2, max_tokens=5, early_stopping="never")
    assert [len(ids) for ids, _ in never] == [1, 5]
    assert never[1][1] > -0.6
    assert search(NEVER, 2, max_tokens=5, early_stopping="never", length_penalty=0.0) == [
        ((END,), -0.5),
        ((1, END), -1.2),
    ]


def _zeros(length: int) -> Table:
    return {(1, 1, a, b): {1: 0.0, 2: -0.5, END: -9.0} for a in (1, 2) for b in (1, 2) if length == 4}


def test_there_are_as_many_beams_as_are_requested_also_where_most_end():
    table: Table = {
        (): {END: -0.1, 1: -3.0, 2: -3.5},
        (1,): {END: -0.1, 1: -4.0, 2: -4.5},
        (2,): {END: -0.1, 1: -9.0, 2: -9.0},
    }
    found = search({**table, (1, 1): {1: -1.0, 2: -1.0, END: -1.5}, (1, 2): {1: -1.0, 2: -1.0, END: -1.0}}, 2)
    assert len(found) == 2
    assert all(before[1] >= after[1] for before, after in pairwise(found))
