import pytest

from frontend.requests.costs import (
    LONG_CHARS,
    MAX_CUT_IDS,
    MAX_PROMPT_LOGPROBS,
    MAX_TOKEN_VECTORS,
    check_num_ids,
    check_prompt_logprobs,
    check_token_vectors,
    estimate_prompts,
    is_long,
)
from frontend.requests.prompt_request import PromptRequest
from messages.errors import RequestError
from messages.ring.requests import ChatPrompt, Dry, Pooling, SamplingParams, Truncation

PLAIN = SamplingParams(1)
DRY = Dry(1.0, 1.75, 2, -1, ("x" * 1000,))


@pytest.mark.parametrize(
    ("requests", "is_so"),
    [
        ([PromptRequest("x" * LONG_CHARS, PLAIN)], True),
        ([PromptRequest("x" * (LONG_CHARS - 1), PLAIN, 64)], False),
        ([PromptRequest("x" * 1000, PLAIN)] * (LONG_CHARS // 1000), True),
        ([PromptRequest(ChatPrompt(b"x" * LONG_CHARS), PLAIN)], True),
        ([PromptRequest("x" * 1000, PLAIN, text_pair="y" * (LONG_CHARS - 1000))], True),
        ([PromptRequest([1] * LONG_CHARS, PLAIN)], False),
        ([PromptRequest([1], SamplingParams(1, bad_words=("x" * 1000,)))] * (LONG_CHARS // 1000), True),
        ([PromptRequest([1], SamplingParams(1, bias_texts=(("x" * 1000, 1.0),)))] * (LONG_CHARS // 1000), True),
        ([PromptRequest([1], SamplingParams(1, dry=DRY))] * (LONG_CHARS // 1000), True),
    ],
)
def test_text_is_counted_over_all_prompts_and_once_for_all_choices(requests: list[PromptRequest], is_so: bool):
    assert is_long(requests) == is_so


def test_prompt_tokens_are_estimated_for_every_choice():
    requests = [PromptRequest([1, 2, 3], PLAIN, 4), PromptRequest("abcdefgh", PLAIN, 2)]
    assert estimate_prompts(requests) == 12 + 6


def test_prompt_logprobs_are_bounded_over_all_choices():
    params = SamplingParams(1, num_prompt_logprobs=15)
    check_prompt_logprobs([PromptRequest([1] * 1024, params, 64)], 1024)
    check_prompt_logprobs([PromptRequest([1] * 9000, PLAIN, 640)], 9000)
    check_prompt_logprobs([PromptRequest("x" * 99_999_999, params, 64)], 1024)
    for requests in ([PromptRequest([1] * 1024, params, 65)], [PromptRequest([1] * 1024, params, 13)] * 5):
        with pytest.raises(RequestError) as raised:
            check_prompt_logprobs(requests, 1024)
        assert raised.value.info.param == "prompt_logprobs"
        assert f"{1024 * 16 * 65} logprobs" in str(raised.value)
        assert f"may have {MAX_PROMPT_LOGPROBS}" in str(raised.value)


def test_ids_beyond_the_context_are_refused_before_they_go_anywhere():
    check_num_ids([PromptRequest([1] * 16, PLAIN), PromptRequest("x" * 99, PLAIN)], 16)
    check_num_ids([PromptRequest([1] * 17, PLAIN, truncation=Truncation(4))], 16)
    for request in (
        PromptRequest([1] * 17, PLAIN),
        PromptRequest([1] * (MAX_CUT_IDS + 1), PLAIN, truncation=Truncation(4)),
    ):
        with pytest.raises(RequestError) as raised:
            check_num_ids([request], 16)
        assert raised.value.info.code == "context_length_exceeded"
        assert f"has {len(request.prompt)} in the prompt" in str(raised.value)


def test_vectors_of_tokens_are_bounded_over_all_texts():
    by_token, whole = (SamplingParams(0, pooling=Pooling(kind)) for kind in ("token_embed", "embed"))
    check_token_vectors([PromptRequest([1] * 256, by_token)] * (MAX_TOKEN_VECTORS // 256), 256)
    check_token_vectors([PromptRequest([1] * 256, whole)] * 1000, 256)
    check_token_vectors([PromptRequest("x" * 9_999_999, by_token)], 256)
    with pytest.raises(RequestError, match="one for each token"):
        check_token_vectors([PromptRequest([1] * 256, by_token)] * (MAX_TOKEN_VECTORS // 256 + 1), 256)
