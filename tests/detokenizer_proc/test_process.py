from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from messages.columns import pack_int32
from messages.config.server import Config, ModelFacts, RunConfig
from messages.control.processes import Beat, BootFailed
from messages.ring.peers import ToFrontend
from messages.ring.replies import CacheFlushed, OpenStream, PromptReply, StepReplies
from messages.ring.requests import FramesLost, StopSeen, ToScheduler
from tests.detokenizer_proc.logprob_runs import prompt_logprobs_of, step_with_logprob
from tests.detokenizer_proc.steps import Client, end, step
from tests.detokenizer_proc.tiny_tokenizers import characters
from tests.fake_launcher import FakeLauncher

pytestmark = pytest.mark.ring


def config_of(tokenizer_dir: Path, vocab_size: int) -> Config:
    facts = ModelFacts(
        model_dir=str(tokenizer_dir),
        tokenizer_dir=str(tokenizer_dir),
        served_names=("m",),
        vocab_size=vocab_size,
        max_model_len=128,
    )
    return Config(facts=facts, run=RunConfig(log_level="debug"))


@pytest.fixture
def tokenizer_dir(tmp_path: Path) -> Path:
    characters().save(str(tmp_path / "tokenizer.json"))
    return tmp_path


@pytest.fixture
def launcher(tokenizer_dir: Path) -> Iterator[FakeLauncher]:
    with FakeLauncher(config_of(tokenizer_dir, 64)) as launcher:
        yield launcher


def test_tokens_in_text_out(launcher: FakeLauncher) -> None:
    from_detokenizer = launcher.open_receiver("frontend", ToFrontend)
    scheduler = launcher.open_receiver("scheduler", ToScheduler)
    to_detokenizer = launcher.open_sender("detokenizer")
    launcher.start_ready("detokenizer_proc")
    assert launcher.wait_for("detokenizer", Beat).gauges == {"streams": 0, "ended_streams": 0}
    ids = [characters().token_to_id(char) for char in "hello"]
    to_detokenizer.send(OpenStream(7, 0, stop=("lo",)))
    to_detokenizer.send(OpenStream(8, 0))
    for i, token_id in enumerate(ids):
        to_detokenizer.send(step([(7, 0, token_id), (8, 0, token_id)], step_id=i))
    to_detokenizer.send(step([], end(7, 5, reason="stop"), end(8, 5), step_id=5))
    stopped, whole = Client(), Client()
    for step_id in range(6):
        replies = launcher.take_one(from_detokenizer)
        assert isinstance(replies, StepReplies)
        assert replies.step_id == step_id
        stopped.take(replies, 7)
        whole.take(replies, 8)
    assert (stopped.text, whole.text) == ("hel", "hello")
    assert stopped.final is not None
    assert stopped.final.stop_reason == "lo"
    assert launcher.take_one(scheduler) == StopSeen(7, 0)
    launcher.wait_for("detokenizer", Beat, where=lambda beat: beat.gauges["streams"] == 0)


def test_prompts_logprobs_and_flushes_pass_in_order(launcher: FakeLauncher) -> None:
    from_detokenizer = launcher.open_receiver("frontend", ToFrontend)
    to_detokenizer = launcher.open_sender("detokenizer")
    launcher.start_ready("detokenizer_proc")
    ids = [characters().token_to_id(char) for char in "hey"]
    to_detokenizer.send(OpenStream(6, 0, prompt_ids=pack_int32(ids), echo=True))
    to_detokenizer.send(OpenStream(7, 0, prompt_ids=pack_int32(ids), num_logprobs=0, num_prompt_logprobs=1))
    to_detokenizer.send(prompt_logprobs_of(ids))
    to_detokenizer.send(step_with_logprob(7, ids[0]))
    to_detokenizer.send(CacheFlushed(9, 5, 2))
    echo, prompt, replies, flushed = (launcher.take_one(from_detokenizer) for _ in range(4))
    assert echo == PromptReply(6, 0, "hey", token_ids=pack_int32(ids))
    assert isinstance(prompt, PromptReply)
    assert [token.token.text for token in prompt.tokens] == list("hey")
    assert isinstance(replies, StepReplies)
    assert [(positions.token.text, positions.text_offset) for positions in replies.logprobs] == [("h", 0)]
    assert flushed == CacheFlushed(9, 5, 2)


def test_after_a_gap_it_reports_of_it_and_forgets_the_streams_that_may_lack_a_token(launcher: FakeLauncher) -> None:
    from_detokenizer = launcher.open_receiver("frontend", ToFrontend)
    to_detokenizer = launcher.open_sender("detokenizer")
    launcher.start_ready("detokenizer_proc")
    to_detokenizer.send(OpenStream(7, 0))
    to_detokenizer.send(step([(7, 0, 1)], step_id=1))
    to_detokenizer.num_sent += 1  # step 2 never leaves
    to_detokenizer.send(step([(7, 0, 3)], step_id=3))
    to_detokenizer.send(OpenStream(7, 1))
    to_detokenizer.send(step([(7, 1, 2)], step_id=4))
    first, lost, third = (launcher.take_one(from_detokenizer) for _ in range(3))
    assert first.texts == ("b",)
    assert lost == FramesLost("detokenizer", to_detokenizer.sender_id, 3, 3)
    assert (third.step_id, third.texts) == (4, ("c",)), "step 3 was for a stream that is gone"


def test_a_new_one_reports_of_a_gap_at_once(launcher: FakeLauncher) -> None:
    """It has seen no request yet, so it knows no frontend: the lost frame may have been the first request."""
    from_detokenizer = launcher.open_receiver("frontend", ToFrontend)
    to_detokenizer = launcher.open_sender("detokenizer")
    launcher.start_ready("detokenizer_proc")
    lost = FramesLost("scheduler", 5, 1, 3)
    to_detokenizer.send(lost)
    assert launcher.take_one(from_detokenizer) == lost


def test_it_drains_in_order_when_it_has_run_behind(launcher: FakeLauncher) -> None:
    """The messages are queued before the process starts."""
    from_detokenizer = launcher.open_receiver("frontend", ToFrontend)
    to_detokenizer = launcher.open_sender("detokenizer")
    to_detokenizer.send(OpenStream(7, 0))
    for step_id in range(3000):
        to_detokenizer.send(step([(7, 0, step_id % 26)], step_id=step_id))
    launcher.start_ready("detokenizer_proc")
    client = Client()
    for step_id in range(3000):
        replies = launcher.take_one(from_detokenizer)
        assert replies.step_id == step_id
        client.take(replies, 7)
    assert client.text == "".join(chr(ord("a") + i % 26) for i in range(3000))


def test_it_sleeps_when_there_is_nothing_to_do(launcher: FakeLauncher) -> None:
    process = psutil.Process(launcher.start_ready("detokenizer_proc").pid)
    launcher.wait_for("detokenizer", Beat)
    before, wakeups = process.cpu_times(), process.num_ctx_switches().voluntary
    for _ in range(3):
        launcher.wait_for("detokenizer", Beat)
    after, wakeups = process.cpu_times(), process.num_ctx_switches().voluntary - wakeups
    assert (after.user - before.user) + (after.system - before.system) < 0.3, "seconds of CPU in about 3 s"
    assert wakeups <= 40, "a poll of 20 ms makes 150 in about 3 s"


@pytest.mark.shared
@pytest.mark.parametrize(("name", "limit_mb"), [("models/tinystories-656k-llama", 60), ("tokenizers/qwen2", 80)])
def test_memory(name: str, limit_mb: int, shared_dir: Path) -> None:
    with FakeLauncher(config_of(shared_dir / name, 151_936)) as launcher:
        process = psutil.Process(launcher.start_ready("detokenizer_proc").pid)
        assert process.memory_info().rss < limit_mb * 2**20
        assert not [file.path for file in process.memory_maps() if "torch" in file.path]


def test_without_a_tokenizer_it_reports_what_it_looked_for(tmp_path: Path) -> None:
    with FakeLauncher(config_of(tmp_path, 64)) as launcher:
        launcher.start("detokenizer_proc")
        message = launcher.wait_for("detokenizer", BootFailed, timeout_s=60).message
        assert launcher.wait_exit("detokenizer") == 1
    assert str(tmp_path) in message
    assert "tokenizer.json" in message
    assert "merges.txt" in message


def test_it_ends_with_its_launcher(launcher: FakeLauncher) -> None:
    launcher.start_ready("detokenizer_proc")
    launcher.abandon()
    assert launcher.wait_exit("detokenizer") in (0, -9)
    assert not launcher.run_dir.path.exists()
