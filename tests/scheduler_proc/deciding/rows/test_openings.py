"""The announcement of a request to the detokenizer."""

import msgspec
import pytest

from messages.columns import pack_int32
from messages.ring.replies import NUM_CONTEXT_TOKENS, OpenStream
from scheduler_proc.deciding.rows.delivery import open_stream
from tests.scheduler_proc.clients import user_msg

PROMPT = list(range(80))


@pytest.mark.parametrize(
    ("params", "num_ids"),
    [
        ({}, NUM_CONTEXT_TOKENS),
        ({"num_logprobs": 3}, NUM_CONTEXT_TOKENS),
        ({"echo": True}, 80),
        ({"num_prompt_logprobs": 0}, 80),
    ],
)
def test_as_much_of_the_prompt_is_notified_as_its_text_needs(params, num_ids):
    opened = open_stream(user_msg(1, PROMPT, **params))
    assert opened.prompt_ids == pack_int32(PROMPT[-num_ids:])
    assert (opened.echo, opened.num_logprobs) == (params.get("echo", False), params.get("num_logprobs"))
    assert opened.num_prompt_logprobs == params.get("num_prompt_logprobs")


def test_a_thought_that_the_prompt_has_opened_is_announced():
    message = msgspec.structs.replace(user_msg(1, PROMPT), begins_in_thought=True)
    assert open_stream(message).begins_in_thought
    assert not open_stream(user_msg(1, PROMPT)).begins_in_thought


def test_a_short_prompt_is_notified_whole():
    assert open_stream(user_msg(1, [4, 5])).prompt_ids == pack_int32([4, 5])


def test_what_ends_and_shapes_the_text_is_notified():
    message = user_msg(
        3, PROMPT, 9, 2, [7], stop=("a",), include_stop_str_in_output=True, skip_special_tokens=False, min_tokens=4
    )
    context = pack_int32(PROMPT[-NUM_CONTEXT_TOKENS:])
    expected = OpenStream(3, 2, ("a",), True, False, pack_int32([7]), 0, context, min_tokens=4)
    assert open_stream(message) == expected
