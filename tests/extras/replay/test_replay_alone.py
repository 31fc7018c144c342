"""A replay of a recorded process has the same results, and a change of its code is found."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from extras.replay.differences import Difference, describe, find_first
from extras.replay.drive import ReplayDriver, output_channels
from extras.replay.recording import Recording
from extras.replay.stand_in import ServerEndedError
from messages.columns import pack_int32, unpack_int32, unpack_int64
from messages.errors import SluiceError
from messages.frame_files import FrameReader, write_frames
from messages.ring.replies import UserReply
from messages.ring.requests import AbortMsg, SamplingParams, Sibling, Stamps, StopSeen, TokenizeMsg, UserMsg
from messages.ring.steps import Batch, ForwardOutput
from tests.extras.replay.recorded_runs import (
    Answering,
    SchedulerAlone,
    detokenizer_alone,
    record,
    tokenizer_alone,
)
from tests.tiny_llama import write_tiny_llama

GREEDY = SamplingParams(max_tokens=20, temperature=0.0)
SAMPLED = SamplingParams(max_tokens=30, seed=11, num_logprobs=2, num_prompt_logprobs=1)


def prompt(uid: int, params: SamplingParams = GREEDY, attempt: int = 0, output: Sequence[int] = ()) -> UserMsg:
    return UserMsg(uid, attempt, pack_int32([uid, 5, 6]), params, Stamps(), pack_int32(output))


def replay(
    folder: Path, only: str, server: SchedulerAlone | Answering, uids: Sequence[int] = ()
) -> tuple[Recording, Difference | None]:
    recording = Recording(folder, only, uids)
    ReplayDriver(recording, only, 0.0).run(server)  # type: ignore[arg-type]
    return recording, find_first(recording.attempts.values())


MIXED = [prompt(1), prompt(2, SAMPLED), 4, prompt(3, SAMPLED), AbortMsg(1, 0), 3, StopSeen(3, 0), prompt(4)]


def test_mixed_requests_of_a_scheduler_come_again(tmp_path: Path):
    record(tmp_path, "scheduler", SchedulerAlone(), MIXED)
    recording, found = replay(tmp_path, "scheduler", SchedulerAlone())
    assert found is None
    outcomes = {uid: attempt.outcome for (uid, _), attempt in recording.attempts.items()}
    assert [outcomes[uid].reason for uid in (1, 2, 3, 4)] == ["abort", "length", "stop", "length"]
    assert 0 < len(outcomes[1].tokens) < 20
    assert len(outcomes[2].tokens) == len(outcomes[2].logprobs) == 30
    assert len(outcomes[2].prompt_logprobs) == 2
    assert output_channels(recording, "scheduler") == ["detokenizer"]


def test_what_was_ended_by_request_is_ended_after_as_many_tokens(tmp_path: Path):
    record(tmp_path, "scheduler", SchedulerAlone(), MIXED)
    server = SchedulerAlone()
    recording, _ = replay(tmp_path, "scheduler", server)
    assert {message for message in server.sent if not isinstance(message, UserMsg)} == {AbortMsg(1, 0), StopSeen(3, 0)}
    for uid in (1, 3):
        attempt = recording.attempts[uid, 0]
        assert attempt.replayed.tokens[: len(attempt.outcome.tokens)] == attempt.outcome.tokens
        assert attempt.replayed.reason == attempt.outcome.reason


def other_token(uid: int, number: int):
    """Changes token `number` of request `uid`."""
    seen = 0

    def change(batch: Batch, output: ForwardOutput) -> ForwardOutput:
        nonlocal seen
        tokens = unpack_int32(output.next_tokens)
        sampled = unpack_int32(batch.sample_tokens)
        ends = {}
        end = -1
        for row_uid, length in zip(unpack_int64(batch.uids), unpack_int32(batch.query_lens), strict=True):
            end += length
            ends[end] = row_uid
        for index, token in enumerate(sampled):
            if ends.get(token) == uid:
                if seen == number:
                    tokens[index] = (tokens[index] + 1) % 200 + 3
                seen += 1
        return msgspec.structs.replace(output, next_tokens=tokens.tobytes())

    return change


def test_a_changed_sampler_is_caught_at_its_request_and_token(tmp_path: Path):
    record(tmp_path, "scheduler", SchedulerAlone(), MIXED)
    _, found = replay(tmp_path, "scheduler", SchedulerAlone(other_token(2, 17)))
    assert found is not None
    assert (found.attempt.key, found.what, found.at_token) == ((2, 0), "token 17", 17)
    recorded = found.attempt.outcome.tokens
    assert (found.recorded, found.replayed) == (recorded[17], (recorded[17] + 1) % 200 + 3)
    text = describe(found)
    assert text.startswith("request 2, attempt 0: token 17 differs")
    assert f"'token_ids': [{recorded[17]}]" in text
    assert f"'token_ids': [{found.replayed}]" in text


def test_an_attempt_that_died_with_its_process_is_compared_as_far_as_it_came(tmp_path: Path):
    params = msgspec.structs.replace(GREEDY, max_tokens=100)
    record(tmp_path, "scheduler", SchedulerAlone(), [prompt(1, params), 6], pid=1)
    tokens = Recording(tmp_path, "scheduler").attempts[1, 0].outcome.tokens
    cut_short(tmp_path / "scheduler.1.frames")
    record(tmp_path, "scheduler", SchedulerAlone(), [prompt(1, params, attempt=1, output=tokens[:4])], pid=2)
    recording, found = replay(tmp_path, "scheduler", SchedulerAlone())
    assert found is None
    died, went_on = recording.attempts.values()
    assert (died.outcome.reason, died.is_whole, died.replayed.reason) == ("", False, "abort")
    assert 0 < len(died.outcome.tokens) < len(died.replayed.tokens) < 100
    assert went_on.outcome.tokens == tokens[4:]
    _, found = replay(tmp_path, "scheduler", SchedulerAlone(other_token(1, 2)))
    assert found is not None
    assert (found.attempt.key, found.what) == ((1, 0), "token 2")


def cut_short(file: Path) -> None:
    """Takes the second half of the records away, as if the process had died there."""
    reader = FrameReader(file)
    records = reader.read()
    write_frames(file, reader, [(record, record.frame) for record in records[: len(records) // 2]])


def test_some_requests_can_be_replayed_alone(tmp_path: Path):
    record(tmp_path, "scheduler", SchedulerAlone(), MIXED)
    server = SchedulerAlone(other_token(2, 3))
    recording, found = replay(tmp_path, "scheduler", server, [3, 4])
    assert found is None
    assert {uid for uid, _ in recording.attempts} == {message.uid for message in server.sent} == {3, 4}
    with pytest.raises(SluiceError, match="holds no such request"):
        Recording(tmp_path, "scheduler", [99])


def test_a_request_that_ends_the_server_is_named(tmp_path: Path):
    record(tmp_path, "scheduler", SchedulerAlone(), [prompt(1), prompt(2)])
    recording = Recording(tmp_path, "scheduler")
    with pytest.raises(ServerEndedError, match="SIGSEGV"):
        ReplayDriver(recording, "scheduler", 0.0).run(SchedulerAlone(dies_of={2}))  # type: ignore[arg-type]
    assert [attempt.is_sent for attempt in recording.attempts.values()] == [True, True]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    write_tiny_llama(path)
    return path


def test_a_tokenizer_and_a_refusal_come_again(tmp_path: Path, model_dir: Path):
    texts = ["hello", "x" * 1000, "world"]
    messages = [TokenizeMsg(uid, 0, text, b"", GREEDY, Stamps()) for uid, text in enumerate(texts, 1)]
    record(tmp_path, "tokenizer", tokenizer_alone(model_dir), messages)
    recording, found = replay(tmp_path, "tokenizer", tokenizer_alone(model_dir))
    assert found is None
    outcomes = [attempt.outcome for attempt in recording.attempts.values()]
    assert [outcome.reason for outcome in outcomes] == ["tokenized", "error", "tokenized"]
    assert outcomes[1].error is not None
    assert outcomes[1].error[0] == 400
    assert output_channels(recording, "tokenizer") == ["scheduler", "frontend"]

    def read_otherwise(message: TokenizeMsg) -> list[Any]:
        text = str(message.prompt_text).replace("world", "worlds")
        return [good.send("", msgspec.structs.replace(message, prompt_text=text)) or good.receive(0.0)[0]]

    good = tokenizer_alone(model_dir)
    _, found = replay(tmp_path, "tokenizer", Answering(read_otherwise))
    assert found is not None
    assert (found.attempt.key, found.what) == ((3, 0), "token 5")


def test_the_choices_of_one_message_come_again_one_by_one(tmp_path: Path, model_dir: Path):
    message = TokenizeMsg(1, 0, "hello", b"", GREEDY, Stamps(), siblings=(Sibling(2, 7), Sibling(3, 8)))
    record(tmp_path, "tokenizer", tokenizer_alone(model_dir), [message])
    recording, found = replay(tmp_path, "tokenizer", tokenizer_alone(model_dir))
    assert found is None
    assert list(recording.attempts) == [(1, 0), (2, 0), (3, 0)]
    assert [attempt.opening for attempt in recording.attempts.values()] == message.each()
    assert {attempt.outcome.reason for attempt in recording.attempts.values()} == {"tokenized"}


def test_a_detokenizer_comes_again_and_another_text_is_found(tmp_path: Path, model_dir: Path):
    (tmp_path / "scheduler").mkdir()
    (tmp_path / "detokenizer").mkdir()
    params = SamplingParams(max_tokens=40, seed=3, num_logprobs=1, stop=("zz", "e"))
    steps = record(
        tmp_path / "scheduler", "scheduler", SchedulerAlone(), [prompt(1, params), prompt(2), 5, AbortMsg(2, 0)]
    )
    replies = record(tmp_path / "detokenizer", "detokenizer", detokenizer_alone(model_dir), steps)
    assert len(replies) > 20
    recording, found = replay(tmp_path / "detokenizer", "detokenizer", detokenizer_alone(model_dir))
    assert found is None
    assert {attempt.is_whole for attempt in recording.attempts.values()} == {True}
    assert output_channels(recording, "detokenizer") == ["scheduler", "frontend"]
    right = detokenizer_alone(model_dir)

    def other_text(message: Any) -> list[Any]:
        right.send("", message)
        return [
            msgspec.structs.replace(one, incremental_output="?") if isinstance(one, UserReply) else one
            for one in (end_changed(reply) for reply in right.receive(0.0))
        ]

    _, found = replay(tmp_path / "detokenizer", "detokenizer", Answering(other_text))
    assert found is not None
    assert found.what == "text"


def end_changed(reply: Any) -> Any:
    if getattr(reply, "finals", ()):
        finals = tuple(msgspec.structs.replace(final, incremental_output="?") for final in reply.finals)
        return msgspec.structs.replace(reply, finals=finals)
    return reply
