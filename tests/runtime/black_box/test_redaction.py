from pathlib import Path
from typing import Any

import msgspec
import pytest

from messages.columns import pack_float32, pack_int32
from messages.frame_files import DECODERS, FrameReader
from messages.frames import HEADER
from messages.ring.replies import PooledReply, PromptReply, StepReplies
from messages.ring.requests import ChatPrompt, SamplingParams, Stamps, UserMsg
from messages.ring.spans import DIGEST_BYTES, PromptSpan
from runtime.black_box.frame_writer import FrameWriter
from runtime.black_box.redaction import redact, redact_file
from tests.messages.samples import SECRET, TOKEN_ID, samples


@pytest.mark.parametrize(
    ("kind", "message"), list(samples()), ids=[f"{kind}-{type(message).__name__}" for kind, message in samples()]
)
def test_no_text_is_left_in_any_message_and_it_still_decodes(kind: str, message: Any):
    encoded = msgspec.msgpack.encode(redact(message))
    assert SECRET.encode() not in encoded
    assert type(DECODERS[kind].decode(encoded)) is type(message)


def test_lengths_and_everything_that_is_no_content_stay():
    message = StepReplies(5, pack_int32([1, 2]), pack_int32([3]), pack_int32([TOKEN_ID] * 2), ("söme", "words"))
    clean = redact(message)
    assert (clean.step_id, clean.uids, clean.attempts) == (5, message.uids, message.attempts)
    assert (clean.token_ids, clean.texts) == (bytes(8), ("xxxx", "xxxxx"))


def test_clients_stay_apart_under_pseudonyms():
    one, same, other = (
        redact(UserMsg(1, 0, b"", SamplingParams(1), Stamps(), client=name)).client
        for name in ("10.0.0.1", "10.0.0.1", "10.0.0.2")
    )
    assert one == same != other
    assert "10.0" not in one + other


def test_the_vector_of_a_prompt_is_hidden():
    message = PooledReply(1, 0, pack_float32([0.5, -0.5, 0.1, 2.0]), 2)
    assert redact(message) == msgspec.structs.replace(message, values=bytes(16))


def test_a_span_keeps_its_place_and_not_its_digest():
    span = PromptSpan(3, 5, bytes(range(DIGEST_BYTES)))
    assert redact(span) == msgspec.structs.replace(span, digest=b"x" * DIGEST_BYTES)


def test_a_chat_stays_a_chat():
    messages = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}, {"role": SECRET, "content": None}]
    clean = redact(ChatPrompt(msgspec.json.encode(messages)))
    assert msgspec.json.decode(clean.messages) == [
        {"role": "user", "content": [{"type": "text", "text": "xx"}]},
        {"role": "x" * len(SECRET), "content": None},
    ]


def test_a_file_keeps_its_stamps_and_numbers(tmp_path: Path):
    writer = FrameWriter(tmp_path / "a.frames", "frontend", 4096)
    for number, message in enumerate([PromptReply(1, 0, SECRET), PromptReply(2, 0, SECRET)]):
        writer.add(number, b"frontend", HEADER.pack(7, number) + msgspec.msgpack.encode(message))
    writer.add(0, b"frontend", HEADER.pack(7, 2) + b"\xc1" + SECRET.encode())
    redact_file(tmp_path / "a.frames", tmp_path / "b.frames")
    before, after = (FrameReader(tmp_path / name).read() for name in ("a.frames", "b.frames"))
    assert [record[:-1] for record in before] == [record[:-1] for record in after]
    assert [record.number for record in after] == [0, 1, 2]
    assert after[1].decode() == PromptReply(2, 0, "x" * len(SECRET))
    assert after[2].is_cut
    assert SECRET.encode() not in (tmp_path / "b.frames").read_bytes()
