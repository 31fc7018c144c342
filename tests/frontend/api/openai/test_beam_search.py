"""`use_beam_search` over real HTTP, with a ring played by the test from a table of logprobs."""

from typing import Any

import pytest

from messages.columns import pack_int32, unpack_int32
from messages.config.server import SchedulingConfig
from messages.control.processes import Drain
from messages.errors import ErrorInfo
from messages.ring.replies import PositionLogprobs, PromptReply, TokenLogprob, Usage
from messages.ring.requests import AbortMsg, SamplingParams, TokenizeMsg
from tests.frontend.frontend_run import STAMPS, Call, FrontendRun, final, make_config, wait_until

PATH, CHAT = "/v1/completions", "/v1/chat/completions"
PROMPT = [50, 51]
END = 7
TABLE = {
    (): {1: -1.0, 2: -1.5, END: -4.0},
    (1,): {END: -0.5, 3: -1.0, 4: -3.0},
    (2,): {END: -2.0, 3: -0.1, 4: -3.0},
    (1, 3): {3: -0.1, 4: -8.0, END: -9.0},
    (2, 3): {3: -0.1, 4: -8.0, END: -9.0},
}
WANTED: dict[str, Any] = {"use_beam_search": True, "stop_token_ids": [END], "max_tokens": 3}


def output_of(message: TokenizeMsg) -> tuple[int, ...]:
    """Returns the beam that a part is about."""
    return tuple(unpack_int32(message.prompt_ids).tolist()[len(PROMPT) :])


def answer(server: FrontendRun, message: TokenizeMsg) -> None:
    """Answers a part of a search as the ring does: with logprobs, or with the end of a beam."""
    params = message.sampling_params
    if params.allowed_token_ids:
        (last,) = unpack_int32(params.allowed_token_ids)
        ids = [*unpack_int32(message.output_ids), last]
        ends = {"finish_reason": "stop", "stop_reason": last} if last in params.stop_token_ids else {}
        text = " ".join(str(token_id) for token_id in ids if token_id not in params.stop_token_ids)
        server.send(final(message, text, (last,), usage=Usage(2, 2, len(ids)), **ends))
        return
    if params.echo:
        server.send(PromptReply(message.uid, message.attempt, "the prompt", token_ids=pack_int32(PROMPT)))
    top = sorted(TABLE[output_of(message)].items(), key=lambda item: -item[1])[: params.num_logprobs]
    tokens = tuple(TokenLogprob(token_id, "", b"", logprob) for token_id, logprob in top)
    logprobs = (PositionLogprobs(tokens[0], tokens, 0),)
    server.send(final(message, "x", (top[0][0],), usage=Usage(2, 1, 1), logprobs=logprobs, stamps=STAMPS))


def play(server: FrontendRun, *rounds: int) -> list[TokenizeMsg]:
    """Answers as many parts as `rounds` say, one round after the other; returns those of the last one."""
    messages: list[TokenizeMsg] = []
    for num_parts in rounds:
        messages = [server.take_request() for _ in range(num_parts)]
        assert not server.arrived()
        for message in reversed(messages):
            answer(server, message)
    return messages


def open_search(server: FrontendRun, path: str = PATH, /, **body: Any) -> Call:
    return server.call({**WANTED, "n": 2, **body}, path=path)


def test_the_beams_are_the_choices_and_the_best_comes_first(server: FrontendRun):
    with open_search(server, length_penalty=3, return_token_ids=True) as call:
        first = server.take_request()
        answer(server, first)
        play(server, 2, 2)
        last = play(server, 2)
        reply = call.json()
    assert (first.prompt_text, first.sampling_params) == (
        "hi",
        SamplingParams(1, temperature=0.0, ignore_eos=True, num_logprobs=3, echo=True),
    )
    assert [unpack_int32(message.output_ids).tolist() for message in last] == [[2, 3], [1, 3]]
    shown = [
        (choice["index"], choice["text"], choice["token_ids"], choice["finish_reason"]) for choice in reply["choices"]
    ]
    assert shown == [(0, "2 3 3", [2, 3, 3], "length"), (1, "1 3 3", [1, 3, 3], "length")]
    assert reply["choices"][0]["prompt_token_ids"] == PROMPT
    assert (reply["usage"]["prompt_tokens"], reply["usage"]["completion_tokens"]) == (2, 6)
    assert reply["usage"]["prompt_tokens_details"] == {"cached_tokens": 1}


def test_an_end_token_ends_a_beam_and_is_no_text(server: FrontendRun):
    with open_search(server, early_stopping=True, length_penalty=0) as call:
        play(server, 1, 2, 2, 2)
        reply = call.json()
    ends = [(choice["text"], choice["finish_reason"], choice["stop_reason"]) for choice in reply["choices"]]
    assert ends == [("1", "stop", END), ("2 3 3", "length", None)]


def test_best_of_is_the_width_and_n_is_what_is_shown(server: FrontendRun):
    with open_search(server, n=1, best_of=2, length_penalty=3) as call:
        play(server, 1, 2, 2, 2)
        reply = call.json()
    assert [choice["text"] for choice in reply["choices"]] == ["2 3 3"]
    assert reply["usage"]["completion_tokens"] == 6


def test_each_prompt_is_searched_by_itself(server: FrontendRun):
    with open_search(server, prompt=["a", "b"], length_penalty=3) as call:
        play(server, 2, 4, 4, 4)
        reply = call.json()
    assert [choice["text"] for choice in reply["choices"]] == ["2 3 3", "1 3 3"] * 2
    assert (reply["usage"]["prompt_tokens"], reply["usage"]["completion_tokens"]) == (4, 12)


def test_a_chat(server: FrontendRun):
    with open_search(server, CHAT, messages=[{"role": "user", "content": "hi"}], prompt=None, length_penalty=3) as call:
        play(server, 1, 2, 2, 2)
        reply = call.json()
    assert [choice["message"]["content"] for choice in reply["choices"]] == ["2 3 3", "1 3 3"]


def test_a_beam_never_outgrows_the_context(server: FrontendRun):
    """The prompt has 510 of 512 tokens, so two remain."""
    prompt = [50] * 510
    with open_search(server, prompt=prompt, max_tokens=9, length_penalty=3) as call:
        (message,) = [server.take_request()]
        tokens = tuple(TokenLogprob(token_id, "", b"", -1.0 - token_id) for token_id in (1, 2, 3))
        found = {"logprobs": (PositionLogprobs(tokens[0], tokens, 0),), "usage": Usage(510, 0, 1)}
        server.send(PromptReply(message.uid, 0, "", token_ids=message.prompt_ids))
        server.send(final(message, "", (1,), **found))
        for message in [server.take_request() for _ in range(2)]:
            assert len(unpack_int32(message.prompt_ids)) == 511
            server.send(final(message, "", (1,), **found))
        play(server, 2)
        assert [choice["finish_reason"] for choice in call.json()["choices"]] == ["length", "length"]


def test_a_client_that_leaves_ends_every_beam(server: FrontendRun):
    with open_search(server):
        play(server, 1)
        parts = [server.take_request() for _ in range(2)]
    for part in parts:
        assert server.take(AbortMsg).uid == part.uid
        server.send(final(part, finish_reason="abort"))


def test_an_abort_by_id_is_the_end_of_the_search(server: FrontendRun):
    call = server.call({**WANTED, "n": 2, "request_id": "mine"}, path=PATH)
    with call:
        parts = [server.take_request()]
        aborted = server.client.post("/abort_request", json={"request_id": "mine"}).json()["aborted"]
        assert len(aborted) == 2
        assert server.take(AbortMsg).uid == parts[0].uid
        reply = call.json()
        assert [(choice["text"], choice["finish_reason"]) for choice in reply["choices"]] == [("", "abort")] * 2
        server.send(final(parts[0], finish_reason="abort"))


def test_a_deadline_ends_it(server: FrontendRun):
    with open_search(server, timeout_s=0.3) as call:
        part = server.take_request()
        assert [choice["finish_reason"] for choice in call.json()["choices"]] == ["timeout"] * 2
        assert server.take(AbortMsg).uid == part.uid
        server.send(final(part, finish_reason="abort"))


def test_the_error_of_one_part_is_that_of_the_request(server: FrontendRun):
    with open_search(server, prompt=["a", "b"]) as call:
        first, second = server.take_request(), server.take_request()
        server.send(final(first, finish_reason="error", error=ErrorInfo(400, "too long", param="prompt")))
        assert (call.response.status, call.json()["error"]["message"]) == (400, "too long")
        assert server.take(AbortMsg).uid == second.uid
        server.send(final(second, finish_reason="abort"))


def test_it_continues_after_a_process_has_died():
    """It may die at the end, when the beams are known but their texts are not."""
    with FrontendRun() as server, open_search(server, length_penalty=3) as call:
        play(server, 1)
        lost = [server.take_request() for _ in range(2)]
        server.replace("scheduler", 2)
        again = [server.take_request() for _ in lost]
        assert [(message.uid, message.attempt) for message in again] == [(message.uid, 1) for message in lost]
        for message in again:
            answer(server, message)
        play(server, 2)
        lost = [server.take_request() for _ in range(2)]
        server.replace("detokenizer", 2)
        again = [server.take_request() for _ in lost]
        assert [message.output_ids for message in again] == [message.output_ids for message in lost]
        for message in again:
            answer(server, message)
        assert [choice["text"] for choice in call.json()["choices"]] == ["2 3 3", "1 3 3"]


def test_a_search_that_has_begun_passes_a_full_queue_and_a_drain():
    limits = SchedulingConfig(max_num_seqs=2, max_queued_requests=1)
    with FrontendRun(make_config(scheduling=limits)) as server, open_search(server, length_penalty=3) as call:
        play(server, 1)
        parts = [server.take_request() for _ in range(2)]
        assert server.client.post("/generate", json={"prompt": "hi"}).status_code == 503
        server.launcher.send("frontend", Drain(60.0))
        wait_until(lambda: server.health()["status"] == "draining")
        for part in parts:
            answer(server, part)
        play(server, 2, 2)
        assert len(call.json()["choices"]) == 2


def test_a_search_that_has_begun_does_not_wait_in_the_queue_of_prompts():
    limits = SchedulingConfig(max_queued_tokens=2)
    with FrontendRun(make_config(scheduling=limits)) as server, open_search(server, length_penalty=3) as call:
        play(server, 1)
        parts = [server.take_request() for _ in range(2)]
        server.round_trip()
        for part in parts:
            answer(server, part)
        play(server, 2, 2)
        assert len(call.json()["choices"]) == 2


def test_metrics_count_the_choices_and_not_their_parts():
    with FrontendRun() as server:
        with open_search(server, length_penalty=3) as call:
            play(server, 1, 2, 2, 2)
            call.json()
        wait_until(lambda: server.gauge("requests") == 0)
        lines = server.client.get("/metrics").text.splitlines()
    ended = [line for line in lines if line.startswith("vllm:request_success_total") and not line.endswith(" 0.0")]
    assert [(line.split("finished_reason=")[1], line[-3:]) for line in ended] == [
        ('"length",model_name="org/m"} 2.0', "2.0")
    ]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("stream", True),
        ("logprobs", 1),
        ("prompt_logprobs", 1),
        ("stop", "x"),
        ("min_tokens", 1),
        ("presence_penalty", 0.5),
        ("frequency_penalty", 0.5),
        ("repetition_penalty", 1.1),
        ("dry_multiplier", 1),
        ("logit_bias", [["x", 1]]),
        ("allowed_token_ids", [1]),
        ("bad_words", ["x"]),
        ("guided_regex", "x"),
        ("stop_token_ids", [*range(65)]),
        ("truncate_prompt_tokens", -1),
        ("length_penalty", 11),
        ("early_stopping", "always"),
        ("num_beams", 3),
        ("n", 65),
    ],
)
def test_what_cannot_be_with_it(server: FrontendRun, name: str, value: Any):
    reply = server.client.post(PATH, json={"prompt": "hi", **WANTED, name: value})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, name)


def test_num_beams_may_report_what_n_reports(server: FrontendRun):
    with open_search(server, num_beams=2, length_penalty=3) as call:
        play(server, 1, 2, 2, 2)
        assert len(call.json()["choices"]) == 2
    with server.call({"num_beams": 1}, path=PATH) as call:
        server.send(final(server.take_request()))
        assert call.response.status == 200


@pytest.mark.parametrize("path", ["/generate", "/v1/responses", "/v1/messages"])
def test_beams_are_refused_where_there_is_no_beam_search(server: FrontendRun, path: str):
    reply = server.client.post(path, json={"num_beams": 4})
    assert (reply.status_code, "num_beams is not supported" in reply.text) == (400, True)


@pytest.mark.parametrize(
    "field", [{"length_penalty": 0.5}, {"early_stopping": True}, {"num_beams": 4}, {"num_beams": 2, "n": 2}]
)
def test_what_is_only_for_it(server: FrontendRun, field: dict[str, Any]):
    reply = server.client.post(PATH, json={"prompt": "hi", **field})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, next(iter(field)))
