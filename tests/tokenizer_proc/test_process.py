import itertools
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from messages.channels import Receiver
from messages.columns import pack_int32, unpack_int32
from messages.config.server import Config, ModelConfig, ModelFacts
from messages.control.processes import BootFailed
from messages.errors import BootError
from messages.ring.peers import ToFrontend
from messages.ring.replies import DecodeReply, EncodeReply, UserReply
from messages.ring.requests import (
    AbortMsg,
    DecodeMsg,
    DropBefore,
    EncodeMsg,
    FlushCache,
    FramesLost,
    SamplingParams,
    Sibling,
    Stamps,
    TokenizeMsg,
    ToScheduler,
    Truncation,
    UserMsg,
)
from messages.ring.timeline import Tokenized
from tests.fake_launcher import FakeLauncher
from tests.tokenizer_proc.parts import chat, encoding_of, templates_of, user
from tokenizer_proc.process import TextServer, load_server


def config_of(tokenizer_dir: Path, vocab_size: int = 8, max_model_len: int = 16, chat_template: str = "") -> Config:
    return Config(
        model=ModelConfig(chat_template=chat_template),
        facts=ModelFacts(
            model_dir=str(tokenizer_dir),
            tokenizer_dir=str(tokenizer_dir),
            served_names=("m",),
            vocab_size=vocab_size,
            max_model_len=max_model_len,
        ),
    )


def word_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel({"?": 0, "one": 1, "two": 2}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[FakeLauncher]:
    word_tokenizer().save(str(tmp_path / "tokenizer.json"))
    with FakeLauncher(config_of(tmp_path)) as launcher:
        yield launcher


def replies(launcher: FakeLauncher, frontend: Receiver[ToFrontend], number: int) -> list[Any]:
    """Returns the next messages for the frontend except reports of prompts, which are sent from time to time."""
    taken = iter(lambda: launcher.take_one(frontend), None)
    return list(itertools.islice((message for message in taken if not isinstance(message, Tokenized)), number))


def text_message(uid: int, text: str) -> TokenizeMsg:
    return TokenizeMsg(uid, 0, text, b"", SamplingParams(max_tokens=100), Stamps(received_ns=1))


@pytest.mark.ring
def test_prompts_continue_in_order_and_refusals_go_back(launcher: FakeLauncher) -> None:
    scheduler = launcher.open_receiver("scheduler", ToScheduler)
    frontend = launcher.open_receiver("frontend", ToFrontend)
    to_tokenizer = launcher.open_sender("tokenizer")
    launcher.start_ready("tokenizer_proc")
    to_tokenizer.send(text_message(1, "one two"))
    to_tokenizer.send(text_message(2, ""))
    to_tokenizer.send(TokenizeMsg(3, 4, None, pack_int32([7, 8]), SamplingParams(max_tokens=1), Stamps(received_ns=9)))
    to_tokenizer.send(text_message(4, "what\x00 \ufdd0\U0010ffff"))
    first, third = (launcher.take_one(scheduler) for _ in range(2))
    to_tokenizer.send(AbortMsg(1, 0))
    to_tokenizer.send(DropBefore(4))
    second, drop = (launcher.take_one(scheduler) for _ in range(2))
    assert isinstance(first, UserMsg)
    assert (first.uid, list(unpack_int32(first.input_ids)), first.sampling_params.max_tokens) == (1, [1, 2], 14)
    assert second == AbortMsg(1, 0)
    assert drop == DropBefore(4)
    assert isinstance(third, UserMsg)
    assert third.uid == 4
    empty, unknown = replies(launcher, frontend, 2)
    assert isinstance(empty, UserReply)
    assert isinstance(unknown, UserReply)
    assert empty.error is not None
    assert unknown.error is not None
    assert (empty.uid, empty.finish_reason, empty.error.status) == (2, "error", 400)
    assert (unknown.uid, unknown.attempt, unknown.error.param) == (3, 4, "prompt")
    assert "Token id 8" in unknown.error.message
    assert unknown.stamps.tokenized_ns > unknown.stamps.received_ns == 9


@pytest.mark.ring
def test_after_a_gap_the_frontend_learns_of_it_also_before_its_first_reply(launcher: FakeLauncher) -> None:
    scheduler = launcher.open_receiver("scheduler", ToScheduler)
    frontend = launcher.open_receiver("frontend", ToFrontend)
    to_tokenizer = launcher.open_sender("tokenizer")
    launcher.start_ready("tokenizer_proc")
    to_tokenizer.send(text_message(1, "one"))
    to_tokenizer.num_sent += 2
    to_tokenizer.send(text_message(4, "two"))
    assert replies(launcher, frontend, 1) == [FramesLost("tokenizer", to_tokenizer.sender_id, 2, 3)]
    assert [launcher.take_one(scheduler).uid for _ in range(2)] == [1, 4]


@pytest.mark.ring
def test_chats_calls_and_flushes(launcher: FakeLauncher, tmp_path: Path) -> None:
    config = json.dumps({"chat_template": "{{ messages[0].content }} two"})
    (tmp_path / "tokenizer_config.json").write_text(config, encoding="utf-8")
    scheduler = launcher.open_receiver("scheduler", ToScheduler)
    frontend = launcher.open_receiver("frontend", ToFrontend)
    to_tokenizer = launcher.open_sender("tokenizer")
    launcher.start_ready("tokenizer_proc")
    message = text_message(1, "")
    to_tokenizer.send(msgspec.structs.replace(message, prompt_text=None, chat=chat(user("one"))))
    to_tokenizer.send(FlushCache(2, is_forced=True))
    bad_words = SamplingParams(max_tokens=1, bad_words=("two",))
    to_tokenizer.send(msgspec.structs.replace(text_message(3, "one"), sampling_params=bad_words))
    to_tokenizer.send(EncodeMsg(4, "two one", wants_token_strs=True))
    to_tokenizer.send(DecodeMsg(5, pack_int32([2, 1])))
    to_tokenizer.send(DecodeMsg(6, pack_int32([8])))
    to_tokenizer.send(EncodeMsg(7, None, chat()))
    flush, rendered, banned = sorted(
        (launcher.take_one(scheduler) for _ in range(3)),
        key=lambda message: (not isinstance(message, FlushCache), message.uid),
    )
    assert list(unpack_int32(rendered.input_ids)) == [1, 2]
    assert flush == FlushCache(2, is_forced=True)
    assert banned.sampling_params.bad_word_ids == (pack_int32([2]),)
    encoded, decoded, outside, empty = replies(launcher, frontend, 4)
    assert encoded == EncodeReply(4, pack_int32([2, 1]), ("two", "one"))
    assert decoded == DecodeReply(5, "two one")
    assert isinstance(outside, DecodeReply)
    assert isinstance(empty, EncodeReply)
    assert outside.error is not None
    assert empty.error is not None
    assert (outside.uid, outside.error.status, outside.error.param) == (6, 400, "tokens")
    assert (empty.uid, empty.error.status, empty.error.param) == (7, 400, "messages")


@pytest.mark.ring
def test_while_a_long_text_is_tokenized_others_are_served_and_it_can_be_aborted(launcher: FakeLauncher) -> None:
    scheduler = launcher.open_receiver("scheduler", ToScheduler)
    frontend = launcher.open_receiver("frontend", ToFrontend)
    to_tokenizer = launcher.open_sender("tokenizer")
    long = msgspec.structs.replace(text_message(1, "one " * 400_000), truncation=Truncation(4))
    for uid in range(1, 5):
        to_tokenizer.send(msgspec.structs.replace(long, uid=uid))
    for uid in range(5, 15):
        to_tokenizer.send(text_message(uid, "two"))
    to_tokenizer.send(AbortMsg(4, 0))  # at most two are being tokenized
    launcher.start_ready("tokenizer_proc")  # now, so that all are there before one of them is done
    assert [launcher.take_one(scheduler).uid for _ in range(10)] == list(range(5, 15))
    [aborted] = replies(launcher, frontend, 1)
    assert isinstance(aborted, UserReply)
    assert (aborted.uid, aborted.finish_reason) == (4, "abort")
    assert sorted(launcher.take_one(scheduler).uid for _ in range(3)) == [1, 2, 3]


@pytest.mark.ring
def test_choices_continue_one_by_one_and_are_refused_together(launcher: FakeLauncher) -> None:
    scheduler = launcher.open_receiver("scheduler", ToScheduler)
    frontend = launcher.open_receiver("frontend", ToFrontend)
    to_tokenizer = launcher.open_sender("tokenizer")
    launcher.start_ready("tokenizer_proc")
    for uid, text in ((1, "one two"), (11, "")):
        siblings = (Sibling(uid + 1, 7), Sibling(uid + 2, 8))
        to_tokenizer.send(msgspec.structs.replace(text_message(uid, text), siblings=siblings))
    choices = [launcher.take_one(scheduler) for _ in range(3)]
    assert [(one.uid, one.sampling_params.seed) for one in choices] == [(1, 0), (2, 7), (3, 8)]
    assert {one.input_ids for one in choices} == {pack_int32([1, 2])}
    assert [reply.uid for reply in replies(launcher, frontend, 3)] == [11, 12, 13]


def test_only_the_operators_own_template_must_be_good(tmp_path: Path) -> None:
    word_tokenizer().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "chat_template.jinja").write_text("{% if %}", encoding="utf-8")
    server = load_server(config_of(tmp_path))
    (reply,) = server.answer(EncodeMsg(1, None, chat(user())))
    assert isinstance(reply, EncodeReply)
    assert reply.error is not None
    assert "Expected an expression" in reply.error.message
    assert server.answer(EncodeMsg(1, "one")) == [EncodeReply(1, pack_int32([1]))]
    with pytest.raises(BootError, match="has a mistake: Expected an expression"):
        load_server(config_of(tmp_path, chat_template=str(tmp_path / "chat_template.jinja")))


@pytest.mark.ring
def test_without_a_tokenizer_it_reports_what_it_looked_for(tmp_path: Path) -> None:
    with FakeLauncher(config_of(tmp_path)) as launcher:
        launcher.start("tokenizer_proc")
        message = launcher.wait_for("tokenizer", BootFailed, timeout_s=60).message
        assert launcher.wait_exit("tokenizer") == 1
    assert str(tmp_path) in message
    assert "tokenizer.json" in message


@pytest.mark.ring
@pytest.mark.shared
@pytest.mark.parametrize(("name", "limit_mb"), [("models/tinystories-656k-llama", 60), ("tokenizers/qwen2", 120)])
def test_memory(name: str, limit_mb: int, shared_dir: Path) -> None:
    with FakeLauncher(config_of(shared_dir / name)) as launcher:
        process = psutil.Process(launcher.start_ready("tokenizer_proc").pid)
        assert process.memory_info().rss < limit_mb * 2**20
        assert not [file.path for file in process.memory_maps() if "torch" in file.path]


@pytest.mark.ring
def test_the_older_files_need_no_torch(tmp_path: Path) -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    models.BPE({char: i for i, char in enumerate(alphabet)}, []).save(str(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}', encoding="ascii")
    with FakeLauncher(config_of(tmp_path, vocab_size=300)) as launcher:
        scheduler = launcher.open_receiver("scheduler", ToScheduler)
        launcher.open_sender("tokenizer").send(text_message(1, "hi"))
        process = psutil.Process(launcher.start_ready("tokenizer_proc").pid)
        assert list(unpack_int32(launcher.take_one(scheduler).input_ids)) == [alphabet.index("h"), alphabet.index("i")]
        assert process.memory_info().rss < 150 * 2**20
        assert not [file.path for file in process.memory_maps() if "torch" in file.path]


class RustPanic(BaseException):
    """Raised by the tokenizers library: not an `Exception`."""


@pytest.mark.parametrize("failure", [RustPanic("index out of bounds"), TypeError("must be str")])
def test_a_prompt_that_breaks_the_tokenizer_fails_alone(
    failure: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    def encode(text: str) -> list[int]:
        raise failure

    server = TextServer(encoding_of(encode), templates_of(), 8, 16)
    with caplog.at_level(logging.ERROR):
        (reply,) = server.answer(text_message(5, "x"))
        (call,) = server.answer(EncodeMsg(6, "x"))
    assert isinstance(reply, UserReply)
    assert isinstance(call, EncodeReply)
    assert reply.error is not None
    assert call.error is not None
    assert (reply.uid, reply.finish_reason, reply.error.status) == (5, "error", 500)
    assert (call.uid, call.error.status) == (6, 500)
    record, _ = caplog.records
    assert reply.error.message.split("reference ")[1].rstrip(")") in record.getMessage()
    assert str(failure) not in reply.error.message
    assert record.exc_info is not None
