from collections.abc import Sequence

import pytest

from messages.errors import ErrorInfo
from scheduler_proc.deciding.sampling.grammar_time import FREE_MASK_S, MAX_EXCESS_S, GrammarTime, TimeAccount
from scheduler_proc.deciding.sampling.grammars import RequestGrammar
from tests.scheduler_proc.clients import EOS, VOCAB_SIZE
from tests.scheduler_proc.simulated_grammar import SimulatedMatcher, SimulatedTokenizer


def ids_in(bitmask: bytes) -> set[int]:
    bits = int.from_bytes(bitmask, "little")
    return {token_id for token_id in range(8 * len(bitmask)) if bits >> token_id & 1}


class SlowMatcher(SimulatedMatcher):
    def __init__(self, clock: list[float], mask_s: float):
        super().__init__("1000 0", VOCAB_SIZE)
        self._clock, self._mask_s = clock, mask_s

    def unsafe_compute_mask_ptr(self, trg_pointer: int, trg_byte_size: int, /) -> None:
        self._clock[0] += self._mask_s
        super().unsafe_compute_mask_ptr(trg_pointer, trg_byte_size)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now_s = [0.0]
    monkeypatch.setattr("scheduler_proc.deciding.sampling.grammars.time.thread_time", lambda: now_s[0])
    monkeypatch.setattr("scheduler_proc.deciding.sampling.grammar_time.time.monotonic", lambda: now_s[0])
    return now_s


def slow_grammars(clock: list[float], mask_s: float, accounts: Sequence[TimeAccount]) -> list[RequestGrammar]:
    tokenizer = SimulatedTokenizer(VOCAB_SIZE)
    return [RequestGrammar(SlowMatcher(clock, mask_s), tokenizer, VOCAB_SIZE, (EOS,), account) for account in accounts]


def make_step(grammars: Sequence[RequestGrammar]) -> list[ErrorInfo | None]:
    for grammar in grammars:
        if allowed := ids_in(grammar.bitmask()) - {EOS}:
            grammar.accept(max(allowed))
    return [grammar.error for grammar in grammars]


@pytest.mark.parametrize("num_requests", [1, 8])
def test_slow_grammars_are_provided_up_by_request_and_not_by_row(clock: list[float], num_requests: int) -> None:
    grammar_time = GrammarTime()
    quick = slow_grammars(clock, FREE_MASK_S / 2, [grammar_time.account_of(0)] * 64)
    accounts = [grammar_time.account_of(1 + number % num_requests) for number in range(256)]
    slow = slow_grammars(clock, 0.02, accounts)
    begin_s = clock[0]
    while any(error is None for error in make_step(slow)):
        assert clock[0] - begin_s < 3.0
    assert "takes too long" in str(slow[0].error)
    assert all(ids_in(grammar.bitmask()) == set() for grammar in slow)
    assert make_step(quick) == [None] * 64
    assert num_requests > 1 or clock[0] - begin_s < MAX_EXCESS_S + 0.1


def test_a_slow_bitmask_now_and_then_is_forgotten(clock: list[float]) -> None:
    grammar_time = GrammarTime()
    rows = slow_grammars(clock, 0.05, [grammar_time.account_of(1)] * 4)
    for _ in range(100):
        assert make_step(rows) == [None] * 4
        clock[0] += 10.0
