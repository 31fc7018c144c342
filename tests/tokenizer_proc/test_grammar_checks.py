import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from messages.columns import pack_int32
from messages.config.http import HttpConfig
from messages.config.server import Config, ModelFacts, SchedulingConfig
from messages.errors import ErrorInfo
from messages.ring.replies import UserReply
from messages.ring.requests import AbortMsg, Grammar, SamplingParams, Stamps, UserMsg
from runtime import background
from runtime.child_process import ChildEndedError, ChildTimeoutError
from tokenizer_proc.grammar_checks import GrammarChecks, GrammarChild
from tokenizer_proc.grammar_child import MAX_CPU_S, GrammarCheck

MODEL_DIR = str(Path(__file__).resolve().parents[2] / "assets" / "shakespeare-gpt2")
TIMEOUT_S = 120.0
FACTS = ModelFacts(
    model_dir=MODEL_DIR,
    tokenizer_dir=MODEL_DIR,
    served_names=("m",),
    vocab_size=3072,
    max_model_len=1024,
    eos_token_ids=(0,),
)

SLOW_SCHEMA = json.dumps({"allOf": [{"type": "string", "pattern": f".*{number:x}.*"} for number in range(20)]})
"""An intersection of patterns, which would take hours to compile."""

RULES = [f'r{number} ::= "{number:x}" r{number + 1}?' for number in range(9_000)]
SLOW_GBNF = "\n".join(["root ::= r0", *RULES, 'r9000 ::= "a"'])
"""245 KB, which take llguidance's translator 110 s."""


class Checks:
    """Grammar checks with their main loop."""

    def __init__(self, timeout_s: float = TIMEOUT_S, http: HttpConfig | None = None):
        self._woken = threading.Event()
        config = Config(
            scheduling=SchedulingConfig(grammar_timeout_s=timeout_s), http=http or HttpConfig(), facts=FACTS
        )
        self.checks = GrammarChecks(config, self._woken.set)

    def start(self, uid: int, grammar: Grammar, attempt: int = 0) -> None:
        self.checks.start(UserMsg(uid, attempt, pack_int32([1]), SamplingParams(5, grammar=grammar), Stamps()))

    def take(self, count: int) -> list[UserMsg | AbortMsg | UserReply]:
        taken: list[UserMsg | AbortMsg | UserReply] = []
        deadline_s = time.monotonic() + TIMEOUT_S
        while len(taken) < count:
            assert time.monotonic() < deadline_s
            self._woken.wait(0.05)
            self._woken.clear()
            taken += self.checks.pop_done()
        return taken

    def error(self, uid: int, grammar: Grammar) -> ErrorInfo | None:
        self.start(uid, grammar)
        (answer,) = self.take(1)
        return answer.error if isinstance(answer, UserReply) else None


def schema(value: object) -> Grammar:
    return Grammar("json_schema", value if isinstance(value, str) else json.dumps(value), "response_format")


@pytest.fixture(scope="module")
def checks() -> Iterator[Checks]:
    checks = Checks()
    yield checks
    checks.checks.close()


def test_messages_come_back_checked_or_refused_and_no_abort_overtakes(checks: Checks) -> None:
    checks.start(1, schema({"type": "object"}))
    checks.start(2, schema({"not": {"type": "null"}}), attempt=3)
    assert checks.checks.hold(AbortMsg(1, 0))
    assert not checks.checks.hold(AbortMsg(5, 0))
    taken = checks.take(3)
    of_first = [each for each in taken if each.uid == 1]
    assert isinstance(of_first[0], UserMsg)
    assert of_first[0].sampling_params.grammar is not None
    assert of_first[0].sampling_params.grammar.kind == "llguidance"
    assert of_first[1:] == [AbortMsg(1, 0)]
    (refusal,) = [each for each in taken if each.uid == 2]
    assert isinstance(refusal, UserReply)
    assert (refusal.attempt, refusal.finish_reason) == (3, "error")
    assert refusal.error is not None
    assert refusal.error.status == 400
    assert not checks.checks.hold(AbortMsg(1, 0))


def test_a_grammar_that_takes_too_much_computing_ends_its_process_alone(checks: Checks) -> None:
    error = checks.error(1, schema(SLOW_SCHEMA))
    words = f"response_format takes more than {MAX_CPU_S} s of CPU time to compile: make it simpler"
    assert error == ErrorInfo(400, words, param="response_format")
    assert checks.error(2, schema({"type": "integer"})) is None


def test_a_schema_does_not_wait_for_a_grammar_in_gbnf(checks: Checks) -> None:
    for uid in (1, 2):
        checks.start(uid, Grammar("lark", SLOW_GBNF + "\n" * uid, "guided_grammar"))
    checks.start(3, schema({"type": "number"}))
    answers = checks.take(3)
    assert answers[0].uid == 3
    assert isinstance(answers[0], UserMsg)
    for answer in answers[1:]:
        assert isinstance(answer, UserReply)
        assert answer.error is not None
        assert (answer.error.status, answer.error.param) == (400, "guided_grammar")


def test_choices_of_a_request_and_later_requests_share_a_check(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[Grammar] = []

    def check(self: GrammarChild, grammar: Grammar, timeout_s: float) -> GrammarCheck:
        checked.append(grammar)
        return GrammarCheck(error=ErrorInfo(400, "bad")) if grammar.text == "bad" else GrammarCheck(grammar)

    monkeypatch.setattr(GrammarChild, "check", check)
    checks = Checks()
    for uid in range(64):
        checks.start(uid, schema("bad"))
    assert len(checks.take(64)) == 64
    assert checks.error(64, schema("bad")) == ErrorInfo(400, "bad")
    assert checks.error(65, schema("good")) is None
    assert checks.error(66, schema("good")) is None
    assert [grammar.text for grammar in checked] == ["bad", "good"]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The clock of the time limits, which stands still until a test sets `now_s`."""
    clock = SimpleNamespace(now_s=0.0, monotonic=lambda: clock.now_s)
    monkeypatch.setattr(background, "time", clock)
    return clock


def test_grammars_that_take_or_wait_too_long_on_a_busy_machine_may_come_again(
    monkeypatch: pytest.MonkeyPatch, clock: SimpleNamespace
) -> None:
    has_begun, release = threading.Event(), threading.Event()

    def check(self: GrammarChild, grammar: Grammar, timeout_s: float) -> GrammarCheck:
        has_begun.set()
        release.wait(TIMEOUT_S)
        return GrammarCheck(grammar)

    monkeypatch.setattr(GrammarChild, "load", lambda self: None)
    monkeypatch.setattr(GrammarChild, "check", check)
    checks = Checks(timeout_s=0.3)
    checks.start(1, schema("{}"))
    assert has_begun.wait(TIMEOUT_S)
    checks.start(2, schema("true"))
    clock.now_s = 0.4
    errors = {each.uid: each.error for each in checks.take(2) if isinstance(each, UserReply)}
    assert errors[1] is not None
    assert (errors[1].status, errors[1].code) == (503, "busy")
    assert "was not compiled within 0.3 s" in errors[1].message
    assert errors[2] is not None
    assert (errors[2].status, errors[2].code) == (503, "busy")
    assert "response_format was not compiled: other grammars" in errors[2].message
    release.set()
    assert checks.error(3, schema("{}")) is None, "the time-out was remembered"


def test_loading_counts_for_no_grammar(monkeypatch: pytest.MonkeyPatch, clock: SimpleNamespace) -> None:
    has_loaded, release = threading.Event(), threading.Event()

    def load(self: GrammarChild) -> None:
        clock.now_s += 3.0
        has_loaded.set()
        release.wait(TIMEOUT_S)

    monkeypatch.setattr(GrammarChild, "load", load)
    monkeypatch.setattr(GrammarChild, "check", lambda self, grammar, timeout_s: GrammarCheck(grammar))
    checks = Checks(timeout_s=1.5)
    checks.start(1, schema("{}"))
    checks.start(2, schema("true"))
    assert has_loaded.wait(TIMEOUT_S)
    assert list(checks.checks.pop_done()) == []
    release.set()
    assert all(isinstance(answer, UserMsg) for answer in checks.take(2))


def test_a_failure_of_ours_is_no_mistake_of_the_client_and_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(GrammarChild, "start", lambda self: (_ for _ in ()).throw(ChildEndedError(1)))
    error = Checks().error(1, schema("{}"))
    assert error is not None
    assert error.status == 500
    assert "a grammar could not be checked" in caplog.text


def test_a_child_that_was_killed_is_replaced_and_its_grammar_is_not_to_blame() -> None:
    child = GrammarChild(FACTS)
    for _ in range(2):
        assert child.check(schema({}), TIMEOUT_S).error is None
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
    assert child.check(schema({}), TIMEOUT_S).error is None
    child.close()


def test_a_child_that_does_not_reply_is_ended() -> None:
    child = GrammarChild(FACTS)
    with pytest.raises(ChildTimeoutError):
        child.check(schema(SLOW_SCHEMA), 0.01)
    assert child.check(schema({}), TIMEOUT_S).error is None
    child.close()


def test_objects_are_closed_as_the_server_reports_unless_the_request_does(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[bool | None] = []

    def check(self: GrammarChild, grammar: Grammar, timeout_s: float) -> GrammarCheck:
        checked.append(grammar.closes_objects)
        return GrammarCheck(grammar)

    monkeypatch.setattr(GrammarChild, "check", check)
    for allows in (False, True):
        checks = Checks(http=HttpConfig(allow_additional_properties=allows))
        for uid, asked in enumerate((None, False, True)):
            checks.error(uid, msgspec.structs.replace(schema(f"{uid}"), closes_objects=asked))
        checks.checks.close()
    assert checked == [True, False, True, False, False, True]


def test_the_refusal_of_a_one_of_reports_what_a_request_can_do(checks: Checks) -> None:
    error = checks.error(900, schema({"oneOf": [{"type": "integer"}, {"type": "number"}]}))
    assert error is not None
    assert "use anyOf" in error.message
    assert "coerce_one_of" not in error.message
