from array import array

import msgspec
import pytest

from messages.columns import pack_float32, pack_int32, pack_int64
from messages.ring.plain import to_plain
from messages.ring.replies import DetokenizeMsg, FinishedRow, OpenStream, TokenLogprob, Usage
from messages.ring.requests import SamplingParams, Stamps
from messages.ring.steps import LogprobColumns
from tests.messages.samples import samples


def test_columns_are_numbers_and_defaults_are_left_out():
    message = DetokenizeMsg(
        3,
        pack_int64([2**40]),
        pack_int32([1]),
        pack_int32([5, 6]),
        (FinishedRow(2**40, 1, "stop", Usage(3), Stamps()),),
        logprobs=LogprobColumns(pack_int32([5]), pack_float32([-0.5]), 0, b"", b""),
    )
    assert to_plain(message) == {
        "type": "DetokenizeMsg",
        "step_id": 3,
        "uids": [2**40],
        "attempts": [1],
        "token_ids": [5, 6],
        "finished": [
            {
                "type": "FinishedRow",
                "uid": 2**40,
                "attempt": 1,
                "finish_reason": "stop",
                "usage": {"type": "Usage", "prompt_tokens": 3},
                "stamps": {"type": "Stamps"},
            }
        ],
        "logprobs": {
            "type": "LogprobColumns",
            "token_ids": [5],
            "logprobs": [-0.5],
            "num_top": 0,
            "top_ids": [],
            "top_logprobs": [],
        },
    }


def test_columns_inside_of_tuples_are_numbers():
    params = SamplingParams(max_tokens=1, bad_word_ids=(pack_int32([7, 8]), pack_int32([9])))
    assert to_plain(params)["bad_word_ids"] == [[7, 8], [9]]


@pytest.mark.parametrize(("utf8", "shown"), [(b"abc", "abc"), (b"\xe2\x82", {"hex": "e282"})])
def test_bytes_are_text_where_they_can_be(utf8: bytes, shown: object):
    assert to_plain(TokenLogprob(1, "", utf8, None))["utf8"] == shown


def test_a_broken_column_is_shown_as_it_is():
    assert to_plain(OpenStream(1, 0, output_ids=array("i", [1]).tobytes() + b"\xff"))["output_ids"] == {
        "hex": "01000000ff"
    }


@pytest.mark.parametrize("message", [message for _, message in samples()], ids=lambda message: type(message).__name__)
def test_every_message_can_be_json(message: msgspec.Struct):
    plain = msgspec.json.decode(msgspec.json.encode(to_plain(message)))
    assert plain["type"] == type(message).__name__
    assert plain.keys() - {"type"} == set(message.__struct_fields__)
