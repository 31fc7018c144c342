import pytest

from frontend.api.usage import PromptTokensDetails, UsageReply, usage_of, usage_so_far
from frontend.generation import Generation
from messages.columns import pack_int32
from messages.replies import PromptReply, Usage
from messages.requests import SamplingParams, Stamps, TokenizeMsg
from tests.frontend.frontend_run import final

Counts = tuple[int, int, int]


def make(index: int = 0, prompt_ids: bytes = b"") -> Generation:
    message = TokenizeMsg(index, 0, None if prompt_ids else "hi", prompt_ids, SamplingParams(8), Stamps())
    return Generation(message, "id", wakes_at_tokens=True, index=index)


def counts(generations: list[Generation], num_choices: int) -> Counts:
    usage = usage_of(generations, num_choices)
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    return usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens, usage.completion_tokens


@pytest.mark.parametrize(("num_choices", "expected"), [(1, (40, 64, 10)), (2, (20, 48, 10)), (4, (10, 32, 10))])
def test_a_prompt_counts_once_with_what_was_cached_for_any_of_its_choices(num_choices: int, expected: Counts):
    generations = [make(index) for index in range(4)]
    for generation, cached, output in zip(generations, (0, 16, 32, 16), (1, 2, 3, 4), strict=True):
        generation.finish(final(generation.message, usage=Usage(10, cached, output)))
    assert counts(generations, num_choices) == expected


def test_before_the_end_it_is_what_is_known():
    by_ids, by_text = make(0, pack_int32([1, 2, 3])), make(1)
    assert usage_so_far(by_ids, None) == UsageReply(3, 0, 3, PromptTokensDetails(0))
    assert usage_so_far(by_text, None) == UsageReply(0, 0, 0, PromptTokensDetails(0))
    by_text.add_prompt(PromptReply(1, 0, "hi", token_ids=pack_int32([4, 5])))
    by_text.add(7, "a")
    by_text.add(8, "b")
    by_text.take_step()
    assert usage_so_far(by_text, None) == UsageReply(2, 1, 3, PromptTokensDetails(0))
    end = final(by_text.message, usage=Usage(2, 1, 2))
    assert usage_so_far(by_text, end) == UsageReply(2, 2, 4, PromptTokensDetails(1))
