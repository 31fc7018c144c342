import pytest
from msgspec import UNSET

from frontend.api.openai.usage import usage_of, usage_so_far
from frontend.requests.generation import Generation
from messages.ring.replies import Usage
from messages.ring.requests import SamplingParams, Stamps, TokenizeMsg
from tests.frontend.frontend_run import final

Counts = tuple[int, int, int]


def make(index: int = 0) -> Generation:
    message = TokenizeMsg(index, 0, "hi", b"", SamplingParams(8), Stamps())
    return Generation(message, "id", index=index)


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


def test_the_tokens_of_images_are_part_of_the_prompt_and_absent_without_images():
    generations = [make(index) for index in range(2)]
    for generation, num_image_tokens in zip(generations, (0, 64), strict=True):
        generation.finish(final(generation.message, usage=Usage(100, 0, 1, num_image_tokens)))
        details = usage_of([generation], 1).prompt_tokens_details
        assert details.image_tokens == (num_image_tokens or UNSET)
        assert usage_so_far(generation, is_last=True).prompt_tokens_details == details
    assert usage_of(generations, 1).prompt_tokens_details.image_tokens == 64
    assert usage_of(generations, 1).prompt_tokens == 200


def so_far(generation: Generation, *, is_last: bool = False) -> Counts:
    usage = usage_so_far(generation, is_last=is_last)
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    return usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens, usage.completion_tokens


def test_before_the_end_it_is_what_has_been_taken():
    generation = make()
    generation.prompt_usage = Usage(40, 32)
    generation.add([7], "a")
    assert so_far(generation) == (40, 32, 0)
    generation.pop_step()
    assert so_far(generation) == (40, 32, 1)


def test_the_end_may_be_there_before_the_beginning_is_written():
    generation = make()
    generation.finish(final(generation.message, "abc", (1, 2, 3), usage=Usage(40, 32, 3)))
    assert so_far(generation) == (40, 32, 0)
    generation.pop_step()
    assert so_far(generation, is_last=True) == (40, 32, 3)
