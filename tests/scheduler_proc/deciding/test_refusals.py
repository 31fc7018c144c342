"""Requests that no step could run are refused, each with a clear message."""

import math

import pytest

from messages.columns import pack_float32, pack_int32
from messages.ring.requests import SamplingParams, Stamps, UserMsg
from scheduler_proc.deciding.refusals import check_possible
from scheduler_proc.deciding.requests import Limits
from tests.scheduler_proc.clients import EOS, VOCAB_SIZE, Bench, user_msg
from tests.scheduler_proc.simulated_runner import expected_output

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
PARAMS = {"ignore_eos": True, "temperature": 0.7, "seed": 11}
FREE_RUN = expected_output(PROMPT, user_msg(0, PROMPT, max_tokens=30, **PARAMS).sampling_params, VOCAB_SIZE, 64)
ONE = pack_int32([1])


def raw(input_ids: bytes, output_ids: bytes = b"", **params: object) -> UserMsg:
    return UserMsg(1, 0, input_ids, SamplingParams(**{"max_tokens": 4, **params}), Stamps(), output_ids)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (raw(b""), "empty"),
        (raw(b"", pack_int32([1])), "empty"),
        (raw(pack_int32([1] * 64)), "maximum context length is 64 tokens, the request has 64"),
        (raw(pack_int32([1, VOCAB_SIZE])), "outside"),
        (raw(pack_int32([1, -1])), "outside"),
        (raw(pack_int32([1]), pack_int32([VOCAB_SIZE])), "outside"),
        (raw(b"abc"), "cannot be read"),
        (raw(b"abcde", b"abc"), "cannot be read"),
        (raw(pack_int32([1]), seed=2**63), "cannot be read"),
        (raw(pack_int32([1]), top_k=2**31), "cannot be read"),
        (raw(ONE, allowed_token_ids=pack_int32([3, VOCAB_SIZE])), "allowed_token_ids holds token ids outside [0, 50)"),
        (raw(ONE, allowed_token_ids=pack_int32([-1])), "allowed_token_ids holds token ids outside"),
        (raw(ONE, allowed_token_ids=b"abc"), "allowed_token_ids cannot be read"),
        (raw(ONE, allowed_token_ids=ONE, bad_word_ids=(ONE,)), "leave none of allowed_token_ids"),
        (
            raw(ONE, allowed_token_ids=pack_int32([EOS, 4]), stop_token_ids=(4,), min_tokens=1),
            "leave none of allowed_token_ids",
        ),
        (raw(ONE, bias_ids=pack_int32([VOCAB_SIZE]), bias_values=pack_float32([1])), "logit_bias holds token ids"),
        (raw(ONE, bias_ids=pack_int32([1, 2]), bias_values=pack_float32([1])), "not one value for each token id"),
        (raw(ONE, bias_values=pack_float32([1])), "not one value for each token id"),
        (raw(ONE, bias_ids=b"abc", bias_values=b"abc"), "logit_bias cannot be read"),
        (raw(ONE, bias_ids=ONE, bias_values=pack_float32([math.inf])), "not finite"),
        (raw(ONE, bias_ids=ONE, bias_values=pack_float32([math.nan])), "not finite"),
        (raw(ONE, bad_word_ids=(ONE, pack_int32([2, VOCAB_SIZE]))), "bad_words holds token ids outside"),
        (raw(ONE, bad_word_ids=(ONE, b"")), "a word without tokens"),
        (raw(ONE, bad_word_ids=(b"abcde",)), "bad_words cannot be read"),
        (raw(ONE, num_logprobs=-1), "logprobs must be in [0, 50]"),
        (raw(ONE, num_prompt_logprobs=VOCAB_SIZE + 1), "prompt_logprobs must be in [0, 50]"),
    ],
)
def test_an_impossible_request_is_refused_and_harms_no_one(message, reason):
    bench = Bench()
    bench.send(user_msg(2, PROMPT, max_tokens=30, **PARAMS), message)
    end = bench.end(1)
    assert end.finish_reason == "error"
    assert end.error is not None
    assert end.error.status == 400
    assert reason in end.error.message
    assert end.stamps.finished_ns > 0
    bench.run()
    assert bench.output(2) == FREE_RUN


@pytest.mark.parametrize(
    "params",
    [
        {"allowed_token_ids": pack_int32([0, VOCAB_SIZE - 1])},
        {"allowed_token_ids": pack_int32([EOS, 4]), "min_tokens": 1},
        {"allowed_token_ids": pack_int32([EOS]), "stop_token_ids": (EOS,)},
        {"bias_ids": pack_int32([0]), "bias_values": pack_float32([-100])},
        {"bad_word_ids": (pack_int32([0]), pack_int32([1, 2, 3]))},
        {"num_logprobs": VOCAB_SIZE, "num_prompt_logprobs": 0},
        {"stop_token_ids": (10**9, -5)},
    ],
)
def test_what_is_possible_passes(params):
    check_possible(raw(pack_int32([1, 2]), **params), Limits(64, VOCAB_SIZE, (EOS,)))
