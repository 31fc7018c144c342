"""`POST /generate` over real HTTP, with a ring played by the test."""

import json
from typing import Any

import pytest

from messages.columns import unpack_int32
from messages.errors import ErrorInfo
from messages.ring.replies import PromptReply, Usage
from messages.ring.requests import Truncation
from tests.frontend.frontend_run import STAMPS, FrontendRun, final, position_logprobs, step

BAD_BODIES: list[tuple[str, str | bytes, str | None, str]] = [
    ("empty body", "", None, "not valid JSON"),
    ("half a document", '{"prompt": "a"', None, "not valid JSON"),
    ("trailing characters", '{"prompt": "a"} x', None, "not valid JSON"),
    ("single quotes", "{'prompt': 'a'}", None, "not valid JSON"),
    ("form data", "prompt=a&max_tokens=3", None, "not valid JSON"),
    ("array", '["a"]', None, "must be a JSON object"),
    ("string", '"a"', None, "must be a JSON object"),
    ("null", "null", None, "must be a JSON object"),
    ("invalid UTF-8", b'{"prompt": "\xff\xfe"}', None, "not valid UTF-8 (byte 12)"),
    ("invalid UTF-8 in an unknown field", b'{"prompt": "a", "zzz": "\xff"}', None, "not valid UTF-8"),
    (
        "half a surrogate pair",
        '{"prompt": "\\ud800"}',
        None,
        'JSON: "\\ud800" (byte 12) is half a surrogate pair; send',
    ),
    (
        "its second half",
        r'{"prompt": "\\\\\ud83d\ude00\uDE00 \u00e9"}',
        None,
        '"\\uDE00" (byte 28) is half a surrogate pair',
    ),
    ("a name that is half one", r'{"\ud83d": 1}', None, '"\\ud83d" (byte 2) is half a surrogate pair'),
    ("half a document that has a pair", r'{"prompt": "\ud83d\ude00', None, "JSON: Input data was truncated"),
    ("no escape", r'{"prompt": "\\\\ud83d', None, "JSON: Input data was truncated"),
    ("byte order mark", b'\xef\xbb\xbf{"prompt": "a"}', None, "not valid JSON"),
    ("too deep", '{"prompt": "a", "zzz": ' + "[" * 5000 + "]" * 5000 + "}", None, "nested too deeply"),
    ("too deep and cut off", '{"zzz": ' + '{"a":' * 20000, None, "nested too deeply"),
    ("twice the same", '{"prompt": "a", "max_tokens": 1, "max_tokens": 2}', None, '"max_tokens" is given more'),
    ("twice, escaped", '{"prompt": "a", "pr\\u006fmpt": "b"}', None, "more than once"),
    ("twice, one a prefix of the other", '{"seed": 12, "prompt": "a", "seed": 1}', None, "more than once"),
    ("no prompt", "{}", "prompt", "prompt is required"),
    ("prompt null", '{"prompt": null}', "prompt", "got null"),
    ("prompt empty", '{"prompt": ""}', "prompt", "not empty"),
    ("prompt empty list", '{"prompt": []}', "prompt", "got []"),
    ("prompt number", '{"prompt": 5}', "prompt", "got 5"),
    ("prompt list of strings", '{"prompt": ["a"]}', "prompt", "(at prompt[0])"),
    ("prompt list of lists", '{"prompt": [[1]]}', "prompt", "list of token ids"),
    ("token id bool", '{"prompt": [1, true]}', "prompt", "(at prompt[1])"),
    ("token id float", '{"prompt": [1.5]}', "prompt", "(at prompt[0])"),
    ("token id negative", '{"prompt": [3, -1]}', "prompt", "(at prompt[1])"),
    ("token id over int32", '{"prompt": [2147483648]}', "prompt", "from 0 to 2147483647"),
    ("max_tokens zero", '{"max_tokens": 0}', "max_tokens", "must be a whole number from 1 to 2147483647, got 0"),
    ("max_tokens zero, nothing of the prompt", '{"max_tokens": 0, "prompt_logprobs": null}', "max_tokens", "got 0"),
    ("max_tokens negative", '{"max_tokens": -5}', "max_tokens", "got -5"),
    ("max_tokens string", '{"max_tokens": "5"}', "max_tokens", 'got "5"'),
    ("max_tokens float", '{"max_tokens": 1.5}', "max_tokens", "got 1.5"),
    ("max_tokens bool", '{"max_tokens": true}', "max_tokens", "got true"),
    ("max_tokens huge", '{"max_tokens": 99999999999999999999}', "max_tokens", "got 99999999999999999999"),
    ("max_tokens over int32", '{"max_tokens": 2147483648}', "max_tokens", "from 1 to 2147483647, got 2147483648"),
    ("min_tokens over int32", '{"min_tokens": 2147483648}', "min_tokens", "from 0 to 2147483647, got 2147483648"),
    ("top_k over int32", '{"top_k": 2147483648}', "top_k", "from 1 to 2147483647, or 0 or -1"),
    ("stop_token_ids over int32", '{"stop_token_ids": [2147483648]}', "stop_token_ids", "from 0 to 2147483647"),
    ("allowed_token_ids over int32", '{"allowed_token_ids": [2147483648]}', "allowed_token_ids", "to 2147483647"),
    ("logit_bias over int32", '{"logit_bias": {"2147483648": 1}}', "logit_bias", "to 2147483647"),
    ("priority over int64", '{"priority": 9223372036854775808}', "priority", "[-2**63, 2**63 - 1]"),
    ("temperature negative", '{"temperature": -0.1}', "temperature", "must be a number in [0, 2], got -0.1"),
    ("temperature too high", '{"temperature": 2.5}', "temperature", "got 2.5"),
    ("temperature NaN", '{"temperature": NaN}', None, "not valid JSON"),
    ("temperature Infinity", '{"temperature": Infinity}', None, "not valid JSON"),
    ("temperature 1e999", '{"temperature": 1e999}', "temperature", "got 1e999"),
    ("temperature bool", '{"temperature": false}', "temperature", "got false"),
    ("temperature string", '{"temperature": "0.7"}', "temperature", 'got "0.7"'),
    ("top_p zero", '{"top_p": 0}', "top_p", "a number in (0, 1], got 0"),
    ("top_p over one", '{"top_p": 1.01}', "top_p", "got 1.01"),
    ("top_k below -1", '{"top_k": -2}', "top_k", "got -2"),
    ("top_k float", '{"top_k": 4.5}', "top_k", "got 4.5"),
    ("min_p over one", '{"min_p": 2}', "min_p", "got 2"),
    ("seed over int64", '{"seed": 9223372036854775808}', "seed", "got 9223372036854775808"),
    ("seed float", '{"seed": 0.5}', "seed", "got 0.5"),
    ("stop empty", '{"stop": ""}', "stop", "none empty"),
    ("stop with an empty one", '{"stop": ["a", ""]}', "stop", "(at stop[1])"),
    ("stop of 65", json.dumps({"stop": ["x"] * 65}), "stop", "up to 64 strings"),
    ("stop number", '{"stop": [1]}', "stop", "(at stop[0])"),
    ("stop_token_ids string", '{"stop_token_ids": "5"}', "stop_token_ids", "a list of token ids"),
    (
        "stop_token_ids outside",
        '{"stop_token_ids": [5, 1000]}',
        "stop_token_ids",
        "below 1000, the size of the vocabulary, got 1000",
    ),
    ("stop_token_ids negative", '{"stop_token_ids": [-1]}', "stop_token_ids", "got [-1]"),
    ("stream string", '{"stream": "yes"}', "stream", "true or false"),
    ("stream number", '{"stream": 1}', "stream", "got 1"),
    ("ignore_eos number", '{"ignore_eos": 0}', "ignore_eos", "got 0"),
    ("cache_salt empty", '{"cache_salt": ""}', "cache_salt", "1 to 128 characters"),
    ("cache_salt long", json.dumps({"cache_salt": "s" * 129}), "cache_salt", "…"),
    ("request_id with a newline", '{"request_id": "a\\nb"}', "request_id", "letters, digits"),
    ("misspelled max_tokens", '{"max_token": 5}', "max_token", "did you mean max_tokens?"),
    ("misspelled temperature", '{"temprature": 1}', "temprature", "did you mean temperature?"),
    ("misspelled top_p", '{"topp": 1}', "topp", "did you mean top_p?"),
    ("misspelled penalty", '{"presence_penality": 1}', "presence_penality", "did you mean presence_penalty?"),
    ("n", '{"n": 2}', "n", "n must be 1 here, got 2: /v1/completions"),
    ("n zero", '{"n": 0}', "n", "got 0"),
    ("n bool", '{"n": true}', "n", "got true"),
    ("best_of", '{"best_of": 2}', "best_of", "best_of is not supported, got 2"),
    ("best_of bool", '{"best_of": true}', "best_of", "not supported"),
    ("echo", '{"echo": true}', "echo", "not supported"),
    ("guided_choice", '{"guided_choice": []}', "guided_choice", "a list of strings"),
    ("response_format", '{"response_format": {"type": "yaml"}}', "response_format", "at response_format.type"),
    ("logprobs bool", '{"logprobs": false}', "logprobs", "from 0 to 20, got false"),
    ("logprobs over 20", '{"logprobs": 21}', "logprobs", "from 0 to 20, got 21"),
    ("prompt_logprobs negative", '{"prompt_logprobs": -1}', "prompt_logprobs", "from 0 to 20, got -1"),
    ("presence_penalty", '{"presence_penalty": 2.1}', "presence_penalty", "a number in [-2, 2], got 2.1"),
    ("frequency_penalty", '{"frequency_penalty": "1"}', "frequency_penalty", 'got "1"'),
    ("repetition_penalty zero", '{"repetition_penalty": 0}', "repetition_penalty", "a number above 0, got 0"),
    ("repetition_penalty huge", '{"repetition_penalty": 1e999}', "repetition_penalty", "got 1e999"),
    ("repetition_penalty tiny", '{"repetition_penalty": 1e-400}', "repetition_penalty", "got 1e-400"),
    ("logit_bias list", '{"logit_bias": [1]}', "logit_bias", "an object of up to 1024 token ids"),
    ("logit_bias word", '{"logit_bias": {"the": 1}}', "logit_bias", 'got {"the": 1}'),
    ("logit_bias negative id", '{"logit_bias": {"-5": 1}}', "logit_bias", "token ids"),
    ("logit_bias zero before id", '{"logit_bias": {"05": 1}}', "logit_bias", "token ids"),
    ("logit_bias too much", '{"logit_bias": {"5": 100.5}}', "logit_bias", "a number in [-100, 100]"),
    ("logit_bias true in a list", '{"logit_bias": [["a", true]]}', "logit_bias", "false, which bans"),
    ("logit_bias banned outside", '{"logit_bias": [[1000, false]]}', "logit_bias", "below 1000"),
    ("logit_bias many in a list", json.dumps({"logit_bias": [["a", 1]] * 1025}), "logit_bias", "list of up to 1024"),
    ("use_beam_search", '{"use_beam_search": true}', "use_beam_search", "not supported"),
    ("logit_bias bool", '{"logit_bias": {"5": true}}', "logit_bias", "got"),
    (
        "logit_bias outside",
        '{"logit_bias": {"1000": 1}}',
        "logit_bias",
        "below 1000, the size of the vocabulary, got 1000",
    ),
    ("logit_bias many", json.dumps({"logit_bias": {str(i): 0 for i in range(1025)}}), "logit_bias", "up to 1024"),
    ("allowed_token_ids empty", '{"allowed_token_ids": []}', "allowed_token_ids", "not empty"),
    ("allowed_token_ids outside", '{"allowed_token_ids": [5, 1000]}', "allowed_token_ids", "got 1000"),
    ("bad_words string", '{"bad_words": "x"}', "bad_words", "a list"),
    ("bad_words empty", '{"bad_words": ["x", ""]}', "bad_words", "(at bad_words[1])"),
    ("timeout_s zero", '{"timeout_s": 0}', "timeout_s", "a number of seconds above 0, got 0"),
    ("timeout_s string", '{"timeout_s": "5"}', "timeout_s", 'got "5"'),
    ("min_tokens over", '{"min_tokens": 9, "max_tokens": 8}', "min_tokens", "at most max_tokens, which is 8, got 9"),
    ("min_tokens over the default", '{"min_tokens": 129}', "min_tokens", "which is 128, got 129"),
    ("min_tokens negative", '{"min_tokens": -1}', "min_tokens", "got -1"),
    ("user", '{"user": 5}', "user", "a string, got 5"),
    ("metadata list", '{"metadata": ["a"]}', "metadata", "an object of strings"),
    ("metadata number", '{"metadata": {"a": 1}}', "metadata", "(at metadata[...])"),
    ("store", '{"store": "yes"}', "store", "true or false"),
    ("service_tier", '{"service_tier": 1}', "service_tier", "a string, got 1"),
    ("priority float", '{"priority": 1.5}', "priority", "got 1.5"),
]


@pytest.mark.parametrize(
    ("body", "param", "fragment"), [row[1:] for row in BAD_BODIES], ids=[row[0] for row in BAD_BODIES]
)
def test_a_bad_body_is_refused_with_its_reason(
    server: FrontendRun, body: str | bytes, param: str | None, fragment: str
):
    text = body.encode() if isinstance(body, str) else body
    if param is not None and param != "prompt":
        text = b'{"prompt": "a", ' + text[1:]
    response = server.post_raw("/generate", text)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert fragment in error["message"]
    assert len(error["message"]) < 300


def test_neutral_and_unknown_fields_are_taken(server: FrontendRun):
    neutral = {"n": 1, "presence_penalty": 0, "frequency_penalty": 0.0, "repetition_penalty": 1, "logprobs": None}
    body = {
        **neutral,
        "logit_bias": {},
        "min_tokens": 0,
        "user": "me",
        "metadata": {"a": "b"},
        "zzz": {"a": [1]},
        "stream": False,
    }
    with server.call(body) as call:
        server.send(final(server.take_request()))
        assert call.response.status == 200


@pytest.mark.parametrize("content_type", ["application/json; charset=utf-8", "Application/JSON", "a/b+json"])
def test_json_by_any_name_is_taken(server: FrontendRun, content_type: str):
    with server.call({"stream": False}, {"Content-Type": content_type}) as call:
        server.send(final(server.take_request()))
        assert call.response.status == 200


@pytest.mark.parametrize("content_type", ["application/x-www-form-urlencoded", "text/plain", "", "multipart/form-data"])
def test_another_media_type_is_refused(server: FrontendRun, content_type: str):
    response = server.client.post("/generate", content=b'{"prompt": "a"}', headers={"Content-Type": content_type})
    assert response.status_code == 415
    assert "application/json" in response.json()["error"]["message"]


def test_a_stream_is_one_event_a_step_and_ends_with_usage_and_timing(server: FrontendRun):
    with server.call({"max_tokens": 3, "seed": 5}) as call:
        message = server.take_request()
        server.send(step([(message, 11, "a")]))
        assert call.response.status == 200
        assert call.response.headers["content-type"].startswith("text/event-stream")
        assert call.response.headers["cache-control"] == "no-cache"
        assert call.response.headers["x-accel-buffering"] == "no"
        assert call.response.headers["x-request-id"]
        first = {"uid": message.uid, "text": "a", "token_ids": [11], "finish_reason": None}
        assert call.next_event() == "data: " + json.dumps(first, separators=(",", ":"))
        server.send(step([(message, 12, "")]))
        assert json.loads(call.next_event()[6:]) == {**first, "text": "", "token_ids": [12]}
        end = final(message, "bü", (13,), stop_reason="END", finish_reason="stop", stamps=STAMPS, usage=Usage(4, 2, 3))
        server.send(step(finals=(end,)))
        (last,) = call.events()
    timing = last.pop("timing")
    assert last == {
        **first,
        "text": "bü",
        "token_ids": [13],
        "finish_reason": "stop",
        "stop_reason": "END",
        "usage": {"prompt_tokens": 4, "cached_tokens": 2, "completion_tokens": 3},
    }
    assert (timing["queue_ms"], timing["prefill_ms"], timing["ttft_ms"], timing["decode_ms"]) == (
        8.0,
        40.0,
        50.0,
        100.0,
    )
    assert (timing["tokens_per_s"], timing["seed"]) == (20.0, 5)
    assert timing["total_ms"] > 0


def test_one_document_when_not_streamed(server: FrontendRun):
    with server.call({"stream": False, "temperature": 0}) as call:
        message = server.take_request()
        assert message.sampling_params.is_greedy
        server.send(step([(message, 11, "a")]))
        server.send(step([(message, 12, "b")]))
        server.send(step(finals=(final(message, "c", (13,), stop_reason=13, finish_reason="stop"),)))
        assert call.response.headers["content-type"] == "application/json"
        reply = call.json()
    assert (reply["text"], reply["token_ids"], reply["uid"]) == ("abc", [11, 12, 13], message.uid)
    assert (reply["finish_reason"], reply["stop_reason"]) == ("stop", 13)
    assert reply["usage"] == {"prompt_tokens": 3, "cached_tokens": 1, "completion_tokens": 2}
    assert reply["timing"]["seed"] == message.sampling_params.seed


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_of_output_and_prompt(server: FrontendRun, stream: bool):
    with server.call({"logprobs": 1, "prompt_logprobs": 0, "stream": stream}) as call:
        message = server.take_request()
        assert (message.sampling_params.num_logprobs, message.sampling_params.num_prompt_logprobs) == (1, 0)
        server.send(
            PromptReply(message.uid, 0, "hi", (position_logprobs(4, "h", None, 0), position_logprobs(5, "i", -2.0, 1)))
        )
        server.send(step([(message, 1, "a")], logprobs={0: position_logprobs(1, "a", -1.0, 0, (2, "b", -0.5))}))
        tokens = json.loads(call.next_event()[6:])["logprobs"] if stream else []
        server.send(final(message, "c", (3,), logprobs=(position_logprobs(3, "c", -3.0, 1),)))
        end = call.events()[-1] if stream else call.json()
    top = [{"token_id": 2, "token": "b", "bytes": [98], "logprob": -0.5}]
    first, last = tokens + end["logprobs"]
    assert first == {"token_id": 1, "token": "a", "bytes": [97], "logprob": -1.0, "top": top}
    assert (last["token_id"], last["logprob"], last["top"]) == (3, -3.0, [])
    assert end["prompt_logprobs"] == [None, {"5": {"logprob": -2.0, "rank": None, "decoded_token": "i"}}]


def test_what_the_tokenizer_gets(server: FrontendRun):
    with server.call({"stream": False}) as call:
        message = server.take_request()
        assert (message.prompt_text, message.prompt_ids, message.attempt) == ("hi", b"", 0)
        assert message.sampling_params.max_tokens == 128
        assert 0 <= message.sampling_params.seed < 2**53
        assert message.stamps.received_ns > 0
        server.send(final(message))
        call.json()
    with server.call({"prompt": [5, 6, 7], "stream": False}) as call:
        by_ids = server.take_request()
        assert by_ids.prompt_text is None
        assert unpack_int32(by_ids.prompt_ids).tolist() == [5, 6, 7]
        assert by_ids.uid > message.uid
        assert by_ids.sampling_params.seed != message.sampling_params.seed
        server.send(final(by_ids))
        call.json()


@pytest.mark.parametrize("is_streamed", [True, False])
@pytest.mark.parametrize("status", [400, 500, 503])
def test_a_refusal_before_the_first_event_is_a_plain_error(server: FrontendRun, is_streamed: bool, status: int):
    with server.call({"stream": is_streamed}) as call:
        info = ErrorInfo(status, "maximum context length is 512 tokens", param="prompt", code="context_length")
        server.send(final(server.take_request(), finish_reason="error", error=info))
        assert call.response.status == status
        assert (call.response.headers["retry-after"] is not None) == (status == 503)
        assert call.json()["error"] == {
            "message": info.message,
            "type": "invalid_request_error",
            "param": "prompt",
            "code": "context_length",
        }


def test_an_error_in_mid_stream_is_an_event(server: FrontendRun):
    with server.call() as call:
        message = server.take_request()
        server.send(step([(message, 1, "a")]))
        call.next_event()
        info = ErrorInfo(500, "the logits were not finite", "internal_error")
        server.send(step(finals=(final(message, "b", (2,), finish_reason="error", error=info),)))
        tokens, error = call.events()
    assert (tokens["text"], tokens["token_ids"]) == ("b", [2])
    assert error == {"error": {"message": info.message, "type": "internal_error", "param": None, "code": None}}


def test_only_the_first_final_and_only_the_current_attempt_count(server: FrontendRun):
    with server.call() as call:
        message = server.take_request()
        stale: Any = type(message)(message.uid, 7, "x", b"", message.sampling_params, message.stamps)
        server.send(step([(stale, 99, "stale")], (final(stale, "stale", (99,)),)))
        server.send(step([(message, 1, "a")]))
        end = final(message, "b", (2,))
        server.send(step(finals=(end, end)))
        server.send(end)
        events = call.events()
    assert "".join(event["text"] for event in events) == "ab"
    assert [event["finish_reason"] for event in events if event["finish_reason"]] == ["length"]
    server.round_trip()
    log = server.launcher.log_text("frontend")
    assert log.count(f"dropped a final reply of uid {message.uid}, attempt 0") == 2
    assert log.count(f"dropped a final reply of uid {message.uid}, attempt 7") == 1


def test_a_message_that_does_not_add_up_costs_only_itself(server: FrontendRun):
    broken = step()
    server.send(type(broken)(1, b"\1\2\3", b"", b"", ("x",)))
    server.round_trip()
    assert "dropped the rest of an inconsistent StepReplies" in server.launcher.log_text("frontend")


def test_request_ids(server: FrontendRun):
    def returned_id(headers: dict[str, str], body: dict[str, Any]) -> str | None:
        with server.call({"stream": False, **body}, headers) as call:
            server.send(final(server.take_request()))
            return call.response.headers["x-request-id"]

    assert returned_id({"X-Request-Id": "abc-1.2"}, {}) == "abc-1.2"
    assert returned_id({"X-Request-Id": "abc"}, {"request_id": "mine"}) == "mine"
    for insane in ("a b", "x" * 129, 'a"b', "é"):
        provided = returned_id({"X-Request-Id": insane}, {})
        assert provided not in (None, "", insane)
    assert returned_id({}, {}) != returned_id({}, {})
    refused = server.post_raw("/generate", b"{", {"X-Request-Id": "seen"})
    assert refused.headers["x-request-id"] == "seen"


def test_abort_by_uid_request_id_and_all(server: FrontendRun):
    with server.call({"request_id": "one"}) as one, server.call({"request_id": "two"}) as two:
        by_id = {message.sampling_params.seed: message for message in (server.take_request(), server.take_request())}
        assert len(by_id) == 2
        uids = sorted(message.uid for message in by_id.values())
        assert server.client.post("/abort_request", json={"uid": uids[0]}).json()["aborted"] == [uids[0]]
        assert server.take_abort().uid == uids[0]
        assert len(server.client.post("/abort_request", json={"request_id": "two"}).json()["aborted"]) == 1
        server.take_abort()
        assert sorted(server.client.post("/abort_request", json={"all": True}).json()["aborted"]) == uids
        assert sorted([server.take_abort().uid, server.take_abort().uid]) == uids
        for message in by_id.values():
            server.send(step(finals=(final(message, finish_reason="abort"),)))
        assert [one.events()[-1]["finish_reason"], two.events()[-1]["finish_reason"]] == ["abort", "abort"]
    assert server.client.post("/abort_request", json={"uid": uids[0]}).json()["aborted"] == []


@pytest.mark.parametrize("body", [{}, {"all": False}, {"uid": 1, "all": True}, {"uid": "1"}, {"request_id": 5}])
def test_a_bad_abort_is_refused(server: FrontendRun, body: dict[str, Any]):
    response = server.client.post("/abort_request", json=body)
    assert response.status_code == 400


def test_prompts_are_not_in_the_log(server: FrontendRun):
    with server.call({"prompt": "a secret of mine", "stream": False}) as call:
        message = server.take_request()
        server.send(final(message, "out", (1, 2)))
        call.json()
    server.round_trip()
    log = server.launcher.log_text("frontend")
    assert f"POST /generate 200 uid={message.uid} prompt=3 cached=1 completion=2 finish=length" in log
    assert "a secret of mine" not in log


@pytest.mark.parametrize("is_streamed", [True, False])
def test_what_is_ignored_is_notified_at_the_end(server: FrontendRun, is_streamed: bool):
    body = {"models": ["a"], "timeout": 5, "max_new_tokens": 7, "repeat_penalty": 1.5, "stream": is_streamed}
    with server.call(body) as call:
        message = server.take_request()
        assert (message.sampling_params.max_tokens, message.sampling_params.repetition_penalty) == (7, 1.5)
        server.send(step([(message, 11, "a")]))
        server.send(final(message, "b", (12,)))
        end = call.events()[-1] if is_streamed else call.json()
    assert end["warnings"] == [
        "the field 'models' of other servers has no effect here and is ignored",
        "the field 'timeout' of other servers has no effect here and is ignored",
    ]


def test_two_names_of_one_field_with_two_values_are_refused(server: FrontendRun):
    reply = server.client.post("/generate", json={"prompt": "a", "max_tokens": 5, "max_new_tokens": 6})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "max_new_tokens")


def test_a_prompt_may_be_cut(server: FrontendRun):
    with server.call({"truncate_prompt_tokens": 5, "truncation_side": "right", "stream": False}) as call:
        message = server.take_request()
        assert message.truncation == Truncation(5, "right")
        server.send(final(message))
        call.json()
    refused = server.client.post("/generate", json={"prompt": "a", "truncate_prompt_tokens": 0})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "truncate_prompt_tokens")
