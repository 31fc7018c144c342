import pytest

from frontend.requests.costs import (
    LONG_CHARS,
    MAX_CUT_IDS,
    MAX_NUMBERS,
    MAX_PROMPT_LOGPROBS,
    MAX_TOKEN_NUMBERS,
    check_num_ids,
    check_output_logprobs,
    check_prompt_logprobs,
    check_vectors,
    estimate_prompts,
    is_long,
)
from frontend.requests.prompt_request import PromptRequest
from messages.config.server import ModelFacts
from messages.errors import RequestError
from messages.ring.dry import Dry
from messages.ring.requests import ChatPrompt, Pooling, SamplingParams, Truncation

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


def test_numbers_of_vectors_are_bounded_over_all_texts():
    facts = ModelFacts(
        model_dir="", tokenizer_dir="", served_names=("m",), vocab_size=9, max_model_len=256, vector_size=512
    )
    by_token, whole = (SamplingParams(0, pooling=Pooling(kind)) for kind in ("token_embed", "embed"))
    num_texts = MAX_TOKEN_NUMBERS // 256 // 512
    check_vectors([PromptRequest([1] * 256, by_token)] * num_texts, facts)
    check_vectors([PromptRequest([1] * 256, whole)] * (MAX_NUMBERS // 512), facts)
    check_vectors([PromptRequest("x" * 9_999_999, by_token)], facts)
    short = SamplingParams(0, pooling=Pooling("token_embed", dimensions=128))
    check_vectors([PromptRequest([1] * 256, short)] * num_texts * 4, facts)
    with pytest.raises(RequestError, match="numbers of vectors"):
        check_vectors([PromptRequest([1] * 256, by_token)] * (num_texts + 1), facts)
    with pytest.raises(RequestError, match="numbers of vectors"):
        check_vectors([PromptRequest([1] * 256, whole)] * (MAX_NUMBERS // 512 + 1), facts)


def test_logprobs_of_the_output_are_bounded_over_all_choices():
    params = SamplingParams(max_tokens=1 << 16, num_logprobs=15)
    check_output_logprobs([PromptRequest("x", params, num_choices=4)], 1 << 20)
    check_output_logprobs([PromptRequest("x", params, num_choices=64)], 1 << 12)
    check_output_logprobs([PromptRequest("x", SamplingParams(max_tokens=1 << 20), num_choices=64)], 1 << 20)
    with pytest.raises(RequestError, match="set max_tokens"):
        check_output_logprobs([PromptRequest("x", params, num_choices=5)], 1 << 20)
