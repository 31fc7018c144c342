"""Pooled prompts in the frontend: many requests of one HTTP request, with a ring played by the test."""

import logging
from collections.abc import Iterator, Sequence

import msgspec
import pytest

from frontend.api.answers.pooled import resolve
from frontend.requests.prompt_request import PromptRequest, check_generates
from messages.columns import pack_float32
from messages.config.pooling import PoolingFacts
from messages.config.server import ModelFacts
from messages.errors import ErrorInfo, RequestError
from messages.ring.replies import PooledReply
from messages.ring.requests import Pooling, SamplingParams, TokenizeMsg
from tests.frontend.frontend_run import Call, FrontendRun, final, step, wait_until

PATH = "/v1/embeddings"


@pytest.fixture(scope="module")
def run() -> Iterator[FrontendRun]:
    with FrontendRun() as run:
        yield run


def open_texts(run: FrontendRun, *texts: str, **fields: object) -> tuple[Call, list[TokenizeMsg]]:
    call = run.call({"input": list(texts), **fields}, path=PATH)
    return call, [run.take_request() for _ in texts]


def answer(run: FrontendRun, message: TokenizeMsg, numbers: Sequence[float]) -> None:
    run.send(PooledReply(message.uid, message.attempt, pack_float32(numbers)))
    run.send(step(finals=(final(message),)))


def test_each_text_is_a_request_and_the_vectors_come_in_their_order(run: FrontendRun):
    call, messages = open_texts(run, "a", "b", "c")
    with call:
        assert [message.prompt_text for message in messages] == ["a", "b", "c"]
        params = messages[0].sampling_params
        assert params.max_tokens == 0
        assert params.pooling == Pooling("embed", normalizes=True, way="last")
        for message in reversed(messages):
            answer(run, message, [message.uid - messages[0].uid, 0.5])
        reply = call.json()
        assert [entry["embedding"] for entry in reply["data"]] == [[0, 0.5], [1, 0.5], [2, 0.5]]
        assert reply["usage"]["prompt_tokens"] == 9


def test_the_error_of_one_text_is_that_of_the_request_with_its_index_and_the_others_are_aborted(run: FrontendRun):
    call, messages = open_texts(run, "a", "b", "c")
    with call:
        answer(run, messages[2], [1.0])
        too_long = ErrorInfo(400, "it is too long", param="prompt", code="context_length_exceeded")
        run.send(final(messages[1], finish_reason="error", error=too_long))
        assert call.response.status == 400
        error = call.json()["error"]
        assert (error["message"], error["param"]) == ("input[1]: it is too long", "input[1]")
        assert run.take_abort().uid == messages[0].uid
    run.send(final(messages[0], finish_reason="abort"))


def test_a_request_that_ends_without_its_vector_is_no_answer(run: FrontendRun):
    for reason, status in (("timeout", 504), ("abort", 503)):
        call, (message,) = open_texts(run, "a")
        with call:
            run.send(final(message, finish_reason=reason))
            assert call.response.status == status
            assert call.json()["error"]["param"] == "input"


def test_all_are_aborted_when_the_client_leaves(run: FrontendRun):
    call, messages = open_texts(run, "a", "b")
    call.leave()
    assert {run.take_abort().uid for _ in messages} == {message.uid for message in messages}
    for message in messages:
        run.send(final(message, finish_reason="abort"))
    wait_until(lambda: not run.gauge("requests"))


def test_a_vector_of_an_attempt_that_is_over_does_not_count(run: FrontendRun):
    call, (message,) = open_texts(run, "a")
    with call:
        run.replace("scheduler", 2)
        again = run.take_request()
        assert (again.uid, again.attempt) == (message.uid, 1)
        assert again.sampling_params.pooling == message.sampling_params.pooling
        run.send(PooledReply(message.uid, 0, pack_float32([7.0])))
        answer(run, again, [1.0])
        assert call.json()["data"][0]["embedding"] == [1.0]


def test_more_texts_than_may_be_open_are_refused(run: FrontendRun):
    with run.call({"input": ["a"] * 10_000}, path=PATH) as call:
        assert call.response.status == 400
        assert "at most" in call.json()["error"]["message"]


FACTS = ModelFacts(model_dir="", tokenizer_dir="", served_names=("m",), vocab_size=9, max_model_len=9)
ENCODER = PoolingFacts(kind="embed", pooling="mean", normalizes=False, is_encoder=True, generates=False)


@pytest.mark.parametrize(
    ("pooling", "known", "expected"),
    [
        (Pooling("embed"), ENCODER, Pooling("embed", normalizes=False, way="mean", is_whole=True)),
        (Pooling("embed", normalizes=True), ENCODER, Pooling("embed", normalizes=True, way="mean", is_whole=True)),
        (Pooling("token_embed"), PoolingFacts(kind="embed"), Pooling("token_embed", normalizes=False)),
        (
            Pooling("classify"),
            PoolingFacts(kind="classify", pooling="cls"),
            Pooling("classify", normalizes=False, way="cls"),
        ),
        (Pooling("labels"), None, Pooling("labels", normalizes=False)),
        (Pooling("classify"), ENCODER, "no classification head"),
        (Pooling("classify"), None, "no classification head"),
        (Pooling("embed"), PoolingFacts(kind="classify"), "classes or scores, not embeddings"),
        (Pooling("labels"), ENCODER, "no language-model head"),
    ],
)
def test_what_depends_on_the_model_follows_from_its_files(
    pooling: Pooling, known: PoolingFacts | None, expected: Pooling | str
):
    facts = msgspec.structs.replace(FACTS, pooling=known)
    if isinstance(expected, Pooling):
        assert resolve(pooling, facts) == expected
    else:
        with pytest.raises(RequestError, match=expected):
            resolve(pooling, facts)


def test_a_model_without_pooling_files_is_warned_about_once(caplog: pytest.LogCaptureFixture):
    facts = msgspec.structs.replace(FACTS, served_names=("without files",))
    for _ in range(3):
        resolve(Pooling("embed"), facts)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "last token's" in caplog.text


def test_a_model_without_a_head_generates_no_text():
    text, pooled = (PromptRequest("a", SamplingParams(0, pooling=pooling)) for pooling in (None, Pooling("embed")))
    for known, serves in ((ENCODER, "embeddings"), (msgspec.structs.replace(ENCODER, kind="classify"), "classes")):
        facts = msgspec.structs.replace(FACTS, pooling=known)
        check_generates([pooled], facts)
        with pytest.raises(RequestError, match=f"generates no text, it gives {serves}"):
            check_generates([pooled, text], facts)
    check_generates([text], FACTS)
