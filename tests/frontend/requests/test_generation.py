import asyncio
import time

import msgspec

from frontend.requests.generation import Generation, Increment
from messages.columns import pack_int32
from messages.errors import ErrorInfo
from messages.ring.replies import PromptReply
from messages.ring.requests import SamplingParams, Stamps, TokenizeMsg
from messages.ring.spans import PromptSpan
from tests.frontend.frontend_run import final, position_logprobs

MESSAGE = TokenizeMsg(7, 0, "hi", b"", SamplingParams(8), Stamps())


def make(*, is_streamed: bool = True) -> Generation:
    params = msgspec.structs.replace(MESSAGE.sampling_params, is_streamed=is_streamed)
    return Generation(msgspec.structs.replace(MESSAGE, sampling_params=params), "id")


def pop_steps(generation: Generation) -> list[Increment]:
    steps: list[Increment] = []
    while generation.has_step:
        steps.append(generation.pop_step())
    return steps


def test_steps_that_were_not_taken_stay_apart():
    generation = make()
    generation.add([1], "a")
    assert pop_steps(generation) == [("a", [1])]
    generation.add([2], "b")
    generation.add([3], "")
    generation.add([4], "c")
    assert pop_steps(generation) == [("b", [2]), ("", [3]), ("c", [4])]
    assert generation.num_taken == 4


def test_the_tokens_of_one_step_stay_together():
    generation = make()
    generation.add([1, 2, 3], "abc")
    generation.add([4], "d")
    assert generation.pop_step() == ("abc", [1, 2, 3])
    generation.finish(final(MESSAGE, "e", (5, 6)))
    assert pop_steps(generation) == [("d", [4])]
    assert generation.pop_all() == ("e", [5, 6])


def test_the_last_tokens_of_a_good_end_are_notified_with_it():
    generation = make()
    generation.add([1], "a")
    generation.add([2], "b")
    generation.finish(final(MESSAGE, "cd", (3, 4)))
    assert pop_steps(generation) == [("a", [1]), ("b", [2])]
    assert generation.pop_all() == ("cd", [3, 4])
    assert generation.num_taken == 4


def test_the_last_tokens_of_a_failure_are_a_step():
    generation = make()
    generation.add([1], "a")
    generation.finish(final(MESSAGE, "cd", (3, 4), error=ErrorInfo(500, "it broke")))
    assert pop_steps(generation) == [("a", [1]), ("cd", [3, 4])]


def test_an_end_without_tokens_or_text_is_no_step():
    generation = make()
    generation.add([1], "a")
    generation.finish(final(MESSAGE))
    assert pop_steps(generation) == [("a", [1])]
    assert generation.pop_all() == ("", [])


def test_of_steps_that_were_not_taken_the_whole_is_the_sum():
    generation = make()
    generation.add([1], "a")
    generation.add([2], "b")
    assert generation.pop_all() == ("ab", [1, 2])
    assert not generation.has_step


def test_finish_adds_the_last_tokens_and_keeps_what_a_continuation_needs():
    generation = make()
    generation.add([1], "ab")
    generation.finish(final(MESSAGE, "cde", (2, 3)))
    assert generation.pop_all() == ("abcde", [1, 2, 3])
    assert generation.output_ids.tolist() == [1, 2, 3]
    assert generation.num_chars == 5


def test_tokens_wake_only_those_who_want_them():
    streamed, whole = make(), make(is_streamed=False)
    for generation in (streamed, whole):
        generation.add([1], "a")
    assert streamed.changed.is_set()
    assert not whole.changed.is_set()
    whole.finish(final(MESSAGE))
    assert whole.changed.is_set()


def test_an_abandoned_generation_keeps_ids_but_no_text():
    generation = make()
    generation.add([1], "a")
    generation.abandon()
    generation.add([2], "b")
    generation.finish(final(MESSAGE, "c", (3,)))
    assert not generation.has_step
    assert generation.output_ids.tolist() == [1, 2, 3]
    assert generation.num_chars == 3


def test_the_next_attempt_has_the_spans_of_the_prompt():
    generation = make()
    generation.message = msgspec.structs.replace(MESSAGE, spans=(PromptSpan(0, 1, bytes(16)),))
    assert generation.next_attempt().spans == generation.message.spans


def test_the_next_attempt_continues_where_the_last_one_stopped():
    generation = make()
    generation.add([1], "ä")
    generation.add([2], "")
    assert generation.has_progressed
    message = generation.next_attempt()
    assert message == msgspec.structs.replace(MESSAGE, attempt=1, output_ids=pack_int32([1, 2]), num_chars_sent=1)
    assert not generation.has_progressed
    generation.add([3], "bc")
    assert generation.has_progressed
    assert generation.next_attempt().num_chars_sent == 3
    assert generation.attempt == 2
    assert generation.pop_all() == ("äbc", [1, 2, 3])


def test_an_attempt_that_is_to_end_at_once_may_have_no_more_tokens():
    generation = make()
    assert generation.next_attempt(ends_at_once=True).sampling_params.max_tokens == 0
    generation.add([1], "a")
    assert generation.next_attempt(ends_at_once=True).sampling_params.max_tokens == 1


def test_prompt_logprobs_are_notified_once_and_never_by_an_attempt_that_is_to_end_at_once():
    params = SamplingParams(8, num_prompt_logprobs=2, num_logprobs=1, echo=True)
    generation = Generation(msgspec.structs.replace(MESSAGE, sampling_params=params), "id")
    assert generation.next_attempt().sampling_params == params
    reported = msgspec.structs.replace(params, num_prompt_logprobs=None, echo=False)
    assert generation.next_attempt(ends_at_once=True).sampling_params == msgspec.structs.replace(reported, max_tokens=0)
    generation.add_prompt(PromptReply(7, 2, "hi"))
    assert generation.next_attempt().sampling_params == reported


def test_the_first_token_is_stamped_once():
    generation = make()
    assert generation.first_token_ns == 0
    generation.add([1], "a")
    first_token_ns = generation.first_token_ns
    assert 0 < first_token_ns <= time.monotonic_ns()
    generation.next_attempt()
    generation.add([2], "a")
    assert generation.first_token_ns == first_token_ns


def test_logprobs_and_what_is_notified_of_the_prompt_outlive_an_attempt():
    generation = make()
    first, again = PromptReply(7, 0, "hi"), PromptReply(7, 1, "hi")
    generation.add_prompt(first)
    generation.add([1], "a")
    generation.add_logprob(position_logprobs(1, "a", -1.0, 0))
    generation.next_attempt()
    generation.add_prompt(again)
    generation.add([2], "b")
    generation.add_logprob(position_logprobs(2, "b", -2.0, 1))
    assert generation.prompt is first
    assert [entry.token.token_id for entry in generation.pop_logprobs(1)] == [1]
    assert [entry.token.token_id for entry in generation.pop_logprobs(1)] == [2]
    generation.finish(final(MESSAGE, "c", (3,), logprobs=(position_logprobs(3, "c", -3.0, 2),)))
    assert [entry.token.token_id for entry in generation.pop_logprobs(1)] == [3]
    assert generation.pop_logprobs(1) == []


def test_choices_of_a_request_wake_one_reader():
    changed = asyncio.Event()
    first, second = (Generation(MESSAGE, "id", index=i, changed=changed) for i in range(2))
    second.add([1], "a")
    assert changed.is_set()
    assert (first.index, first.has_step, second.index, second.has_step) == (0, False, 1, True)
