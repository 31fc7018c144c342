"""`/infill` in a frontend, with a ring played by the test; the body is that of llama.vim."""

import json
from typing import Any

import pytest

from messages.ring.infill import ExtraFile, Infill
from messages.ring.replies import Usage
from messages.ring.requests import Stamps, TokenizeMsg
from tests.frontend.frontend_run import Call, FrontendRun, final, position_logprobs, step

EXTRA = [{"text": "ONE = 1\n", "time": 17.5, "filename": "one.py"}, {"text": "TWO"}]
LLAMA_VIM: dict[str, Any] = {
    "input_prefix": "def f():\n",
    "input_suffix": "\n\nf()\n",
    "input_extra": EXTRA,
    "prompt": "    ",
    "n_predict": 32,
    "n_indent": 4,
    "top_k": 40,
    "top_p": 0.9,
    "stream": False,
    "samplers": ["top_k", "top_p", "infill"],
    "cache_prompt": True,
    "t_max_prompt_ms": 500,
    "t_max_predict_ms": 250,
    "response_fields": ["content", "timings/prompt_n", "timings/predicted_ms", "truncated", "tokens_cached", "none"],
}
STAMPS = Stamps(received_ns=1_000_000, first_scheduled_ns=2_000_000, first_token_ns=5_000_000, finished_ns=9_000_000)
END: dict[str, Any] = {"usage": Usage(20, 16, 4), "stamps": STAMPS}


def send(run: FrontendRun, **body: Any) -> tuple[Call, TokenizeMsg]:
    call = run.call({"prompt": None, **body}, path="/infill")
    return call, run.take_request()


def test_the_body_of_llama_vim(server: FrontendRun) -> None:
    call, message = send(server, **LLAMA_VIM)
    with call:
        assert message.prompt_text == "def f():\n    "
        files = (ExtraFile("one.py", "ONE = 1\n"), ExtraFile("tmp", "TWO"))
        assert message.infill == Infill("\n\nf()\n", "input_suffix", files)
        params = message.sampling_params
        assert (params.max_tokens, params.top_k, params.top_p, params.is_streamed) == (32, 40, 0.9, False)
        server.send(final(message, "return 1", (5, 6), finish_reason="stop", **END))
        assert call.json() == {
            "content": "return 1",
            "timings/prompt_n": 4,
            "timings/predicted_ms": 4.0,
            "truncated": False,
            "tokens_cached": 24,
        }


@pytest.mark.parametrize(
    ("finish_reason", "stop_reason", "stop_type", "word"),
    [("stop", None, "eos", ""), ("stop", 7, "eos", ""), ("stop", "\n", "word", "\n"), ("length", None, "limit", "")],
)
def test_the_whole_reply(
    server: FrontendRun, finish_reason: str, stop_reason: str | int | None, stop_type: str, word: str
) -> None:
    call, message = send(server, input_prefix="a", input_suffix="", return_tokens=True, model="m")
    with call:
        assert (message.infill, message.prompt_text) == (Infill("", "input_suffix"), "a")
        assert message.sampling_params.max_tokens == 512
        server.send(final(message, "bc", (5, 6), finish_reason=finish_reason, stop_reason=stop_reason, **END))
        reply = call.json()
    assert (reply["content"], reply["tokens"], reply["stop"], reply["model"]) == ("bc", [5, 6], True, "m")
    assert (reply["tokens_predicted"], reply["tokens_evaluated"], reply["tokens_cached"]) == (4, 20, 24)
    assert (reply["stop_type"], reply["stopping_word"]) == (stop_type, word)
    assert reply["timings"] == {
        "cache_n": 16,
        "prompt_n": 4,
        "prompt_ms": 3.0,
        "prompt_per_token_ms": 0.75,
        "prompt_per_second": pytest.approx(4 / 0.003),
        "predicted_n": 4,
        "predicted_ms": 4.0,
        "predicted_per_token_ms": 1.0,
        "predicted_per_second": 1000.0,
    }
    assert "completion_probabilities" not in reply


def test_a_stream_ends_with_the_event_that_stops(server: FrontendRun) -> None:
    call, message = send(server, input_prefix="a", input_suffix="b", stream=True, n_probs=1)
    with call:
        assert message.sampling_params.num_logprobs == 1
        server.send(step([(message, 5, "x")], logprobs={0: position_logprobs(5, "x", -0.5, 0)}))
        server.send(
            final(message, "y", (6,), finish_reason="stop", logprobs=(position_logprobs(6, "y", -0.5, 1),), **END)
        )
        events = [line for line in call.response.read().decode().split("\n\n") if line]
    piece, last = (json.loads(event.removeprefix("data: ")) for event in events)
    assert (piece["content"], piece["stop"], last["content"], last["stop"]) == ("x", False, "y", True)
    assert [entry["token"] for entry in piece["completion_probabilities"] + last["completion_probabilities"]] == [
        "x",
        "y",
    ]


def test_no_tokens_may_be_predicted(server: FrontendRun) -> None:
    """llama.vim fills the cache so."""
    call, message = send(server, input_prefix="", input_suffix="", input_extra=EXTRA, n_predict=0, stream=False)
    with call:
        assert message.sampling_params.max_tokens == 0
        server.send(final(message, "", (), finish_reason="length", usage=Usage(20, 0, 0), stamps=STAMPS))
        assert call.json()["content"] == ""


@pytest.mark.parametrize(
    ("body", "param", "fragment"),
    [
        ({"input_prefix": None}, "input_prefix", "a string"),
        ({"input_suffix": 5}, "input_suffix", "a string"),
        ({"input_extra": {"text": "a"}}, "input_extra", "a list"),
        ({"input_extra": [{"filename": "a"}]}, "input_extra", "at input_extra[0]"),
        ({"n_predict": -2}, "n_predict", "a whole number"),
        ({"truncate_prompt_tokens": 5}, "truncate_prompt_tokens", "not supported here"),
        ({"model": "other"}, "model", "does not exist"),
    ],
)
def test_a_bad_body_is_refused_with_its_reason(
    server: FrontendRun, body: dict[str, Any], param: str, fragment: str
) -> None:
    with server.call({"prompt": None, "input_prefix": "a", "input_suffix": "b", **body}, path="/infill") as call:
        error = call.json()["error"]
    assert error["param"] == param, error
    assert fragment in error["message"]
