"""`POST /v1/completions` over real HTTP, with a ring played by the test."""

import json
from typing import Any

import pytest

from messages.columns import pack_int32, unpack_int32
from messages.config.server import SchedulingConfig
from messages.errors import ErrorInfo
from messages.ring.infill import Infill
from messages.ring.replies import PrefilledRow, PromptReply, Usage
from messages.ring.requests import TokenizeMsg, Truncation
from tests.frontend.frontend_run import Call, FrontendRun, final, make_config, position_logprobs, step, wait_until

PATH = "/v1/completions"


def send(server: FrontendRun, num: int = 1, /, **body: Any) -> tuple[Call, list[TokenizeMsg]]:
    """Sends a request and returns it with the `num` messages that the tokenizer gets for it."""
    call = server.call(body, path=PATH)
    return call, [server.take_request() for _ in range(num)]


def refused(server: FrontendRun, body: dict[str, Any]) -> dict[str, Any]:
    """Returns the error of a request that is refused with 400."""
    response = server.client.post(PATH, json={"prompt": "hi", **body})
    assert response.status_code == 400, response.text
    return response.json()["error"]


def text_of(chunks: list[dict[str, Any]], index: int = 0) -> str:
    return "".join(choice["text"] for chunk in chunks for choice in chunk["choices"] if choice["index"] == index)


def test_one_document(server: FrontendRun):
    call = server.call({"model": "m", "max_tokens": 2}, {"X-Request-Id": "mine"}, PATH)
    with call:
        message = server.take_request()
        assert message.prompt_text == "hi"
        assert message.add_special_tokens
        server.send(step([(message, 1, "a")]))
        server.send(step(finals=(final(message, "b", (2,), stop_reason="b", finish_reason="stop"),)))
        reply = call.json()
        assert call.response.headers["x-request-id"] == "mine"
    assert reply.pop("created") > 1.7e9
    assert reply == {
        "id": "cmpl-mine",
        "object": "text_completion",
        "model": "m",
        "choices": [{"index": 0, "text": "ab", "logprobs": None, "finish_reason": "stop", "stop_reason": "b"}],
        "usage": {
            "prompt_tokens": 3,
            "completion_tokens": 2,
            "total_tokens": 5,
            "prompt_tokens_details": {"cached_tokens": 1},
        },
    }


def test_what_the_tokenizer_gets(server: FrontendRun):
    call, (message,) = send(server, prompt=[5, 6], add_special_tokens=False)
    with call:
        assert unpack_int32(message.prompt_ids).tolist() == [5, 6]
        assert message.sampling_params.max_tokens == 16
        assert (message.sampling_params.num_logprobs, message.sampling_params.echo) == (None, False)
        assert not message.add_special_tokens
        server.send(final(message))
        assert call.json()["model"] == "org/m"


def test_prompts_and_choices_have_their_places(server: FrontendRun):
    call, messages = send(server, 4, prompt=["one", "two"], n=2, seed=7)
    with call:
        assert [message.prompt_text for message in messages] == ["one", "one", "two", "two"]
        assert [message.sampling_params.seed for message in messages] == [7, 8, 7, 8]
        for message, text, cached in reversed(list(zip(messages, "abcd", (0, 16, 0, 32), strict=True))):
            server.send(final(message, text, (1,), usage=Usage(len(message.prompt_text or ""), cached, 1)))
        reply = call.json()
    assert [(choice["index"], choice["text"]) for choice in reply["choices"]] == list(enumerate("abcd"))
    assert reply["usage"] == {
        "prompt_tokens": 6,
        "completion_tokens": 4,
        "total_tokens": 10,
        "prompt_tokens_details": {"cached_tokens": 48},
    }


def test_prompts_without_a_seed_have_different_ones(server: FrontendRun):
    call, messages = send(server, 3, prompt=[[1], [1], [1]])
    with call:
        assert len({message.sampling_params.seed for message in messages}) == 3
        for message in messages:
            server.send(final(message))
        call.json()


def test_the_flag_reports_how_many_choices_a_prompt_may_have():
    config = make_config(scheduling=SchedulingConfig(max_n_sequences=2))
    with FrontendRun(config) as run:
        assert "n must be at most 2, got 3" in refused(run, {"n": 3})["message"]
        assert refused(run, {"best_of": 3})["param"] == "best_of"


@pytest.mark.parametrize("prompt", ["", ["", "a"]])
def test_with_a_suffix_the_text_may_begin_with_the_gap(server: FrontendRun, prompt: str | list[str]):
    texts = [prompt] if isinstance(prompt, str) else prompt
    call, messages = send(server, len(texts), prompt=prompt, suffix="end")
    with call:
        assert [(message.prompt_text, message.infill) for message in messages] == [
            (text, Infill("end", "suffix")) for text in texts
        ]
        for message in messages:
            server.send(final(message, "x"))
        assert len(call.json()["choices"]) == len(texts)


def test_a_list_of_far_too_many_prompts_is_refused_before_any_work(server: FrontendRun):
    error = refused(server, {"prompt": [[1]] * 20_000})
    assert "20000 choices" in error["message"]


def test_a_stream_of_two_choices(server: FrontendRun):
    call, (first, second) = send(server, 2, n=2, stream=True, stream_options={"include_usage": True})
    with call:
        server.send(step([(first, 1, "a"), (second, 2, "x")]))
        one, two = (json.loads(call.next_event()[6:]) for _ in range(2))
        assert call.response.headers["content-type"].startswith("text/event-stream")
        server.send(step([(second, 3, "y\u2028")], (final(first, "b", (4,)),)))
        server.send(step(finals=(final(second, "z", (5,), finish_reason="stop", usage=Usage(3, 2, 3)),)))
        rest = call.events()
    chunks = [one, two, *rest[:-1]]
    assert {key: one[key] for key in ("object", "model", "usage")} == {
        "object": "text_completion",
        "model": "org/m",
        "usage": None,
    }
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert (text_of(chunks, 0), text_of(chunks, 1)) == ("ab", "xy\u2028z")
    ends = [
        (choice["index"], choice["finish_reason"])
        for chunk in rest
        for choice in chunk["choices"]
        if choice["finish_reason"]
    ]
    assert ends == [(0, "length"), (1, "stop")]
    assert rest[-1]["choices"] == []
    assert rest[-1]["usage"]["completion_tokens"] == 5
    assert rest[-1]["usage"]["prompt_tokens"] == 3


def test_usage_in_every_chunk(server: FrontendRun):
    options = {"include_usage": True, "continuous_usage_stats": True}
    call, (message,) = send(server, stream=True, stream_options=options)
    with call:
        assert not message.sampling_params.echo
        server.send(step([(message, 1, "a")], prefilled=(PrefilledRow(message.uid, 0, Usage(20, 16)),)))
        usages = [json.loads(call.next_event()[6:])["usage"]]
        server.send(step([(message, 2, "b")]))
        usages.append(json.loads(call.next_event()[6:])["usage"])
        server.send(final(message, "c", (3,), usage=Usage(20, 16, 3)))
        usages += [chunk["usage"] for chunk in call.events()]
    assert [usage["completion_tokens"] for usage in usages] == [1, 2, 3, 3]
    assert [usage["total_tokens"] for usage in usages] == [21, 22, 23, 23]
    assert {usage["prompt_tokens_details"]["cached_tokens"] for usage in usages} == {16}


def test_prompts_that_are_not_of_the_present_attempt_are_not_counted(server: FrontendRun):
    options = {"include_usage": True, "continuous_usage_stats": True}
    call, (message,) = send(server, stream=True, stream_options=options)
    with call:
        rows = (PrefilledRow(message.uid, 0, Usage(20, 16)), PrefilledRow(message.uid, 7, Usage(9, 9)))
        server.send(step([(message, 1, "a")], prefilled=(*rows, PrefilledRow(message.uid + 99, 0, Usage(9, 9)))))
        assert json.loads(call.next_event()[6:])["usage"]["prompt_tokens"] == 20
        server.send(final(message))
        call.events()


def test_a_stream_without_usage_has_none(server: FrontendRun):
    call, (message,) = send(server, stream=True)
    with call:
        server.send(final(message, "b", (2,)))
        (chunk,) = call.events()
    assert "usage" not in chunk


def test_logprobs(server: FrontendRun):
    call, (message,) = send(server, logprobs=2)
    with call:
        assert message.sampling_params.num_logprobs == 2
        one = position_logprobs(11, "ü", -0.5, 0, (11, "ü", -0.5), (12, "b", -1.5))
        server.send(step([(message, 11, "ü")], logprobs={0: one}))
        two = position_logprobs(13, "c", -3.0, 1, (12, "b", -0.25), (14, "b", -2.0))
        server.send(final(message, "c", (13,), logprobs=(two,)))
        logprobs = call.json()["choices"][0]["logprobs"]
    assert logprobs == {
        "tokens": ["ü", "c"],
        "token_logprobs": [-0.5, -3.0],
        "top_logprobs": [{"ü": -0.5, "b": -1.5}, {"c": -3.0, "b": -0.25}],
        "text_offset": [0, 1],
    }


def test_logprobs_in_a_stream_come_with_their_tokens(server: FrontendRun):
    call, (message,) = send(server, stream=True, logprobs=0, return_tokens_as_token_ids=True, return_token_ids=True)
    with call:
        server.send(PromptReply(message.uid, 0, "hi", token_ids=pack_int32([8, 9])))
        server.send(step([(message, 11, "")], logprobs={0: position_logprobs(11, "�", -0.5, 0)}))
        first = json.loads(call.next_event()[6:])["choices"][0]
        server.send(final(message, "ü", (12,), logprobs=(position_logprobs(12, "�", float("-inf"), 0),)))
        (last,) = call.events()
    assert (first["text"], first["token_ids"], first["prompt_token_ids"]) == ("", [11], [8, 9])
    assert first["logprobs"]["tokens"] == ["token_id:11"]
    assert first["logprobs"]["top_logprobs"] == [{"token_id:11": -0.5}]
    choice = last["choices"][0]
    assert (choice["text"], choice["token_ids"], choice["finish_reason"]) == ("ü", [12], "length")
    assert choice["logprobs"]["token_logprobs"] == [-9999.0]
    assert "prompt_token_ids" not in choice


PROMPT_TOKENS = (position_logprobs(5, "Ü", None, 0), position_logprobs(6, "b", -1.0, 1, (6, "b", -1.0)))


@pytest.mark.parametrize("stream", [False, True])
def test_echo_with_logprobs_has_those_of_the_prompt_first(server: FrontendRun, stream: bool):
    call, (message,) = send(server, prompt="Üb", echo=True, logprobs=1, stream=stream)
    with call:
        assert message.sampling_params.num_prompt_logprobs == 1
        server.send(PromptReply(message.uid, 0, "Üb", PROMPT_TOKENS, pack_int32([5, 6])))
        server.send(step([(message, 7, "c")], logprobs={0: position_logprobs(7, "c", -2.0, 0, (8, "d", -0.1))}))
        if stream:
            choice = json.loads(call.next_event()[6:])["choices"][0]
        server.send(final(message, "e", (9,), logprobs=(position_logprobs(9, "e", -3.0, 1),)))
        if stream:
            (last,) = (chunk["choices"][0] for chunk in call.events())
            assert last["text"] == "e"
            assert last["logprobs"]["text_offset"] == [3]
        else:
            choice = call.json()["choices"][0]
    assert choice["text"] == ("Übc" if stream else "Übce")
    logprobs = choice["logprobs"]
    assert logprobs["tokens"][:3] == ["Ü", "b", "c"]
    assert logprobs["token_logprobs"][:3] == [None, -1.0, -2.0]
    assert logprobs["top_logprobs"][:3] == [None, {"b": -1.0}, {"c": -2.0, "d": -0.1}]
    assert logprobs["text_offset"][:3] == [0, 1, 2]


def test_prompt_logprobs_alone(server: FrontendRun):
    call, (message,) = send(server, prompt=[5, 6], echo=True, logprobs=0, max_tokens=0)
    with call:
        params = message.sampling_params
        assert (params.max_tokens, params.echo, params.num_prompt_logprobs) == (0, True, 0)
        server.send(PromptReply(message.uid, 0, "Üb", PROMPT_TOKENS, pack_int32([5, 6])))
        server.send(final(message, usage=Usage(2, 0, 0)))
        reply = call.json()
    choice = reply["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("Üb", "length")
    assert choice["logprobs"]["token_logprobs"] == [None, -1.0]
    assert reply["usage"]["total_tokens"] == 2


def test_echo_of_a_text_is_the_text_and_requests_nothing(server: FrontendRun):
    call, (message,) = send(server, prompt="as it  was", echo=True, stream=True)
    with call:
        assert not message.sampling_params.echo
        server.send(step([(message, 1, "!")]))
        server.send(final(message, "?", (2,)))
        assert text_of(call.events()) == "as it  was!?"


def test_prompt_logprobs_and_ids(server: FrontendRun):
    call, (message,) = send(server, prompt_logprobs=1, return_token_ids=True)
    with call:
        assert (message.sampling_params.num_prompt_logprobs, message.sampling_params.num_logprobs) == (1, None)
        tokens = (position_logprobs(5, "Ü", None, 0), position_logprobs(6, "b", -2.0, 1, (7, "c", -1.0)))
        server.send(PromptReply(message.uid, 0, "Üb", tokens, pack_int32([5, 6])))
        server.send(final(message, "d", (8,)))
        choice = call.json()["choices"][0]
    assert choice["prompt_logprobs"] == [
        None,
        {
            "6": {"logprob": -2.0, "rank": None, "decoded_token": "b"},
            "7": {"logprob": -1.0, "rank": 1, "decoded_token": "c"},
        },
    ]
    assert (choice["prompt_token_ids"], choice["token_ids"]) == ([5, 6], [8])
    assert choice["logprobs"] is None


def test_best_of_shows_the_likeliest_on_average(server: FrontendRun):
    call, messages = send(server, 3, best_of=3, n=2)
    with call:
        assert all(message.sampling_params.num_logprobs == 0 for message in messages)
        unlikely, likely, long = messages
        server.send(step([(long, 1, "l")], logprobs={0: position_logprobs(1, "l", -0.6, 0)}))
        server.send(final(unlikely, "u", (1,), logprobs=(position_logprobs(1, "u", -1.0, 0),), usage=Usage(3, 0, 1)))
        server.send(final(likely, "a", (1,), logprobs=(position_logprobs(1, "a", -0.5, 0),), usage=Usage(3, 0, 1)))
        server.send(final(long, "o", (1,), logprobs=(position_logprobs(1, "o", -0.6, 1),), usage=Usage(3, 0, 2)))
        reply = call.json()
    assert [(choice["index"], choice["text"]) for choice in reply["choices"]] == [(0, "a"), (1, "lo")]
    assert reply["choices"][0]["logprobs"] is None
    assert reply["usage"]["completion_tokens"] == 4


def test_the_error_of_one_choice_ends_all(server: FrontendRun):
    call, (first, second) = send(server, 2, prompt=["a", "b"])
    with call:
        server.send(final(first, "x", (1,)))
        info = ErrorInfo(400, "maximum context length is 512 tokens", param="prompt")
        server.send(final(second, finish_reason="error", error=info))
        assert call.response.status == 400
        assert call.json()["error"]["message"] == info.message
    call, (first, second) = send(server, 2, prompt=["a", "b"], stream=True)
    with call:
        server.send(step([(first, 1, "x"), (second, 1, "y")]))
        begun = [json.loads(call.next_event()[6:]) for _ in range(2)]
        server.send(final(first, "z", (2,), finish_reason="error", error=ErrorInfo(500, "not finite", "internal")))
        *chunks, error = begun + call.events()
        assert (text_of(chunks, 0), text_of(chunks, 1)) == ("xz", "y")
        assert error["error"]["message"] == "not finite"
        assert server.take_abort().uid == second.uid
        server.send(final(second, finish_reason="abort"))


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_ends_all_choices(server: FrontendRun, stream: bool):
    call, messages = send(server, 3, n=3, stream=stream)
    server.send(step([(messages[0], 1, "x")], (final(messages[1]),)))
    wait_until(lambda: server.gauge("requests") == 2)
    if stream:
        call.next_event()
    call.leave()
    assert {server.take_abort().uid for _ in range(2)} == {messages[0].uid, messages[2].uid}
    server.send(step(finals=(final(messages[0], finish_reason="abort"), final(messages[2], finish_reason="abort"))))


def test_choices_continue_after_a_restart():
    with FrontendRun() as server:
        call, (first, second) = send(server, 2, n=2, logprobs=0, seed=3)
        with call:
            server.send(PromptReply(first.uid, 0, "hi"))
            server.send(step([(first, 1, "a")], logprobs={0: position_logprobs(1, "a", -1.0, 0)}))
            server.round_trip()
            server.replace("scheduler", 2)
            again = {message.uid: message for message in (server.take_request(), server.take_request())}
            assert [again[first.uid].attempt, again[second.uid].attempt] == [1, 1]
            assert unpack_int32(again[first.uid].output_ids).tolist() == [1]
            assert again[second.uid].sampling_params.seed == 4
            server.send(PromptReply(first.uid, 1, "hi"))
            server.send(final(again[first.uid], "b", (2,), logprobs=(position_logprobs(2, "b", -2.0, 1),)))
            server.send(final(again[second.uid], "c", (3,), logprobs=(position_logprobs(3, "c", -3.0, 0),)))
            choices = call.json()["choices"]
    assert [choice["text"] for choice in choices] == ["ab", "c"]
    assert choices[0]["logprobs"]["token_logprobs"] == [-1.0, -2.0]


@pytest.mark.parametrize(
    ("body", "param", "fragment"),
    [
        ({"prompt": []}, "prompt", "none of them empty"),
        ({"prompt": ["a", ""]}, "prompt", "got an empty string"),
        ({"prompt": "", "suffix": ""}, "prompt", "got an empty string"),
        ({"prompt": [[1], []]}, "prompt", "(at prompt[1])"),
        ({"prompt": [1, "a"]}, "prompt", "a list that mixes them"),
        ({"prompt": [[1], 1]}, "prompt", "a list that mixes them"),
        ({"prompt": [[1, True]]}, "prompt", "(at prompt[0][1])"),
        ({"prompt": [2**31]}, "prompt", "from 0 to 2147483647"),
        ({"prompt": {"a": 1}}, "prompt", "a string"),
        ({"n": 0}, "n", "from 1 to 64, got 0"),
        ({"n": 65}, "n", "at most 64, got 65"),
        ({"best_of": 2**31}, "best_of", "from 1 to 64, got 2147483648"),
        ({"prompt": ["a"] * 1281}, "prompt", "1281 choices"),
        (
            {"prompt": ["a"] * 641, "n": 2},
            "prompt",
            "at most 1280 may be open (--max-num-seqs and --max-queued-requests)",
        ),
        ({"user": 5}, "user", "a string"),
        ({"store": 1}, "store", "true or false"),
        ({"stop_token_ids": [1000]}, "stop_token_ids", "below 1000"),
        ({"n": 2, "temperature": 0}, "n", "n must be 1 with greedy sampling"),
        ({"best_of": 2, "temperature": 0}, "best_of", "best_of must be 1 with greedy sampling"),
        ({"n": 3, "best_of": 2}, "best_of", "at least n, which is 3, got 2"),
        ({"best_of": 2, "stream": True}, "best_of", "in a stream"),
        ({"logprobs": 21}, "logprobs", "from 0 to 20"),
        ({"logprobs": True}, "logprobs", "got true"),
        ({"max_tokens": 0}, "max_tokens", "got 0"),
        ({"min_tokens": 17}, "min_tokens", "which is 16, got 17"),
        ({"suffix": "end", "prompt": [1, 2]}, "suffix", "needs a prompt of text"),
        ({"suffix": "end", "echo": True}, "echo", "cannot be combined with suffix"),
        ({"suffix": "end", "truncate_prompt_tokens": 5}, "truncate_prompt_tokens", "cannot be combined with suffix"),
        ({"suffix": "end", "use_beam_search": True, "n": 2}, "use_beam_search", "cannot be combined with suffix"),
        ({"suffix": 5}, "suffix", "a string"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "only for streams"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options", "include_usage"),
        ({"stream": True, "prompt_logprobs": 1}, "prompt_logprobs", "not in streams"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "is required"),
        ({"guided_regex": "a*", "guided_json": {}}, "guided_regex", "give one of them"),
        (
            {"truncate_prompt_tokens": 0},
            "truncate_prompt_tokens",
            "from 1 to 511, or -1 for what the context leaves, got 0",
        ),
        ({"truncate_prompt_tokens": 512}, "truncate_prompt_tokens", "from 1 to 511, or -1"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens", "or -1 for what that leaves, got -2"),
        ({"truncate_prompt_tokens": "5"}, "truncate_prompt_tokens", "a whole number"),
        ({"truncate_prompt_tokens": 5, "truncation_side": "middle"}, "truncation_side", '"left" or "right"'),
        ({"model": 5}, "model", "got 5"),
        ({"best_off": 2}, "best_off", "did you mean best_of?"),
    ],
)
def test_what_is_refused(server: FrontendRun, body: dict[str, Any], param: str, fragment: str):
    error = refused(server, body)
    assert error["param"] == param
    assert fragment in error["message"]


def test_more_choices_than_may_ever_be_open_are_refused(server: FrontendRun):
    assert "1281 choices" in refused(server, {"prompt": [[1]] * 1281})["message"]
    assert not server.arrived()


def test_choices_enter_together_or_not_at_all():
    config = make_config(scheduling=SchedulingConfig(max_num_seqs=1, max_queued_requests=1))
    with FrontendRun(config) as server, server.call() as running:
        first = server.take_request()
        response = server.client.post(PATH, json={"prompt": "hi", "n": 2})
        assert response.status_code == 503
        assert int(response.headers["retry-after"]) >= 1
        assert not server.arrived()
        server.send(step(finals=(final(first),)))
        running.events()


def test_all_choices_are_ended_by_the_id_of_the_reply(server: FrontendRun):
    call, messages = send(server, 2, n=2, request_id="mine", stream=True)
    with call:
        server.send(step([(messages[0], 1, "a")]))
        assert json.loads(call.next_event()[6:])["id"] == "cmpl-mine"
        reply = server.client.post("/abort_request", json={"request_id": "cmpl-mine"})
        assert reply.json()["aborted"] == [message.uid for message in messages]
        for message in messages:
            assert server.take_abort().uid == message.uid
            server.send(final(message, finish_reason="abort"))
        assert [chunk["choices"][0]["finish_reason"] for chunk in call.events()] == ["abort", "abort"]


def test_an_unknown_model_is_not_found(server: FrontendRun):
    response = server.client.post(PATH, json={"model": "gpt-5", "prompt": "hi"})
    assert response.status_code == 404
    assert response.json()["error"] == {
        "message": "The model `gpt-5` does not exist",
        "type": "not_found_error",
        "param": "model",
        "code": "model_not_found",
    }


def test_parameters_that_mean_nothing_are_taken(server: FrontendRun):
    nothing = {"user": "me", "metadata": {"a": "b"}, "store": True, "service_tier": "auto", "suffix": "", "n": 1}
    more = {"response_format": {"type": "text"}, "best_of": 1, "parallel_tool_calls": False, "logit_bias": None}
    call, (message,) = send(server, **nothing, **more)
    with call:
        server.send(final(message))
        assert call.response.status == 200


def test_no_character_of_a_text_ends_a_line(server: FrontendRun):
    call, (message,) = send(server, stream=True)
    with call:
        server.send(step([(message, 1, "a\u2028\x85")]))
        event = call.next_event()
        assert len(event.splitlines()) == 1
        assert json.loads(event[6:])["choices"][0]["text"] == "a\u2028\x85"
        server.send(final(message, "b", (2,)))
        call.events()


def test_a_prompt_to_be_cut_goes_to_the_tokenizer_whole(server: FrontendRun):
    call, (message,) = send(server, prompt="one two", truncate_prompt_tokens=3)
    with call:
        assert (message.prompt_text, message.truncation) == ("one two", Truncation(3, "left"))
        server.send(final(message))
        call.json()
    call, (message,) = send(server, prompt=[1, 2], truncate_prompt_tokens=-1, truncation_side="right")
    with call:
        assert message.truncation == Truncation(-1, "right")
        server.send(final(message))
        call.json()
    call, (message,) = send(server, truncate_prompt_tokens=512, max_tokens=0, echo=True, truncation_side="right")
    with call:
        assert message.truncation == Truncation(512, "right")
        server.send(PromptReply(message.uid, 0, "hi", token_ids=pack_int32([4])))
        server.send(final(message))
        call.json()
    call, (message,) = send(server, truncation_side="right")
    with call:
        assert message.truncation is None
        server.send(final(message))
        call.json()


@pytest.mark.parametrize("prompt", ["one two", [1, 2]])
def test_what_is_shown_of_a_prompt_is_what_was_left_of_it(server: FrontendRun, prompt: str | list[int]):
    call, (message,) = send(server, prompt=prompt, truncate_prompt_tokens=1, echo=True, return_token_ids=True)
    with call:
        assert message.sampling_params.echo
        server.send(PromptReply(message.uid, 0, " two", token_ids=pack_int32([2])))
        server.send(final(message, "!", (3,)))
        choice = call.json()["choices"][0]
    assert (choice["text"], choice["prompt_token_ids"]) == (" two!", [2])
