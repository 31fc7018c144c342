import logging
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from messages.channels import Sender
from messages.columns import pack_int32, unpack_int32
from messages.config import Config, ModelFacts
from messages.control import BootFailed
from messages.errors import ChannelFullError
from messages.replies import ToFrontend, UserReply
from messages.requests import AbortMsg, DropBefore, SamplingParams, Stamps, TokenizeMsg, ToScheduler, UserMsg
from tests.fake_launcher import FakeLauncher
from tokenizer_proc.encoding import Encoding
from tokenizer_proc.process import read_or_refuse, send_or_drop
from tokenizer_proc.prompts import PromptReader


def config_of(tokenizer_dir: Path, vocab_size: int = 8, max_model_len: int = 16) -> Config:
    return Config(
        facts=ModelFacts(
            model_dir=str(tokenizer_dir),
            tokenizer_dir=str(tokenizer_dir),
            served_names=("m",),
            vocab_size=vocab_size,
            max_model_len=max_model_len,
        )
    )


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[FakeLauncher]:
    tokenizer = Tokenizer(models.WordLevel({"?": 0, "one": 1, "two": 2}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with FakeLauncher(config_of(tmp_path)) as launcher:
        yield launcher


def text_message(uid: int, text: str) -> TokenizeMsg:
    return TokenizeMsg(uid, 0, text, b"", SamplingParams(max_tokens=100), Stamps(received_ns=1))


@pytest.mark.ring
def test_prompts_go_on_in_order_and_refusals_go_back(launcher: FakeLauncher) -> None:
    scheduler = launcher.open_receiver("scheduler", ToScheduler)
    frontend = launcher.open_receiver("frontend", ToFrontend)
    to_tokenizer = launcher.open_sender("tokenizer")
    launcher.start_ready("tokenizer_proc")
    to_tokenizer.send(text_message(1, "one two"))
    to_tokenizer.send(AbortMsg(1, 0))
    to_tokenizer.send(text_message(2, ""))
    to_tokenizer.send(TokenizeMsg(3, 4, None, pack_int32([7, 8]), SamplingParams(max_tokens=1), Stamps(received_ns=9)))
    to_tokenizer.send(DropBefore(4))
    to_tokenizer.send(text_message(4, "what\x00 \ufdd0\U0010ffff"))
    first, second, drop, third = (launcher.take_one(scheduler) for _ in range(4))
    assert isinstance(first, UserMsg)
    assert (first.uid, list(unpack_int32(first.input_ids)), first.sampling_params.max_tokens) == (1, [1, 2], 14)
    assert second == AbortMsg(1, 0)
    assert drop == DropBefore(4)
    assert isinstance(third, UserMsg)
    assert third.uid == 4
    empty, unknown = (launcher.take_one(frontend) for _ in range(2))
    assert isinstance(empty, UserReply)
    assert isinstance(unknown, UserReply)
    assert empty.error is not None
    assert unknown.error is not None
    assert (empty.uid, empty.finish_reason, empty.error.status) == (2, "error", 400)
    assert (unknown.uid, unknown.attempt, unknown.error.param) == (3, 4, "prompt")
    assert "Token id 8" in unknown.error.message
    assert unknown.stamps.tokenized_ns > unknown.stamps.received_ns == 9


@pytest.mark.ring
def test_without_a_tokenizer_it_says_what_it_looked_for(tmp_path: Path) -> None:
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


class FullChannel(Sender[ToScheduler]):
    def __init__(self) -> None:
        pass

    def send(self, message: ToScheduler) -> None:
        raise ChannelFullError("full")


def test_a_scheduler_that_does_not_read_does_no_harm(caplog: pytest.LogCaptureFixture) -> None:
    send_or_drop(FullChannel(), AbortMsg(1, 0))
    assert "dropped AbortMsg: full" in caplog.text


class RustPanic(BaseException):
    """As the tokenizers library raises: no `Exception`."""


@pytest.mark.parametrize("failure", [RustPanic("index out of bounds"), TypeError("must be str")])
def test_a_prompt_that_breaks_the_tokenizer_fails_alone(
    failure: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    def encode(text: str) -> list[int]:
        raise failure

    reader = PromptReader(Encoding(encode, 1), 8, 16)
    with caplog.at_level(logging.ERROR):
        reply = read_or_refuse(reader, text_message(5, "x"))
    assert isinstance(reply, UserReply)
    assert reply.error is not None
    assert (reply.uid, reply.finish_reason, reply.error.status) == (5, "error", 500)
    (record,) = caplog.records
    assert reply.error.message.split("reference ")[1].rstrip(")") in record.getMessage()
    assert str(failure) not in reply.error.message
    assert record.exc_info is not None
