"""Servers without processes for the tests of replaying, and recordings of what they do."""

from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from detokenizer_proc.detokenizer import Detokenizer
from detokenizer_proc.vocabulary import load_vocabulary
from extras.faults.messages import Poison
from extras.replay.stand_in import ServerEndedError
from messages.config.server import Config, ModelFacts
from messages.control.processes import kind_of
from messages.frame_files import IS_SENT
from messages.frames import HEADER
from messages.ring.requests import StopSeen, UserMsg
from messages.ring.steps import Batch, ForwardOutput
from runtime.black_box.frame_writer import FrameWriter
from scheduler_proc.deciding.pages.block_allocator import BlockAllocator
from scheduler_proc.deciding.requests import Limits
from scheduler_proc.deciding.scheduler import Scheduler
from scheduler_proc.deciding.step_plan import Budget
from supervisor.manifest import make_manifest, write_manifest
from tests.scheduler_proc.simulated_runner import SimulatedRunner
from tests.tiny_llama import VOCAB_SIZE
from tokenizer_proc.process import load_server

CONTEXT = 256
PAGE_SIZE = 4
NUM_PAGES = 400
MAX_NUM_SEQS = 4

Change = Callable[[Batch, ForwardOutput], ForwardOutput]


class SchedulerAlone:
    """The scheduler's code with a simulated model; `change` may make other tokens of a step's.

    It dies when it has got the requests `dies_of`. Several engines are one.
    """

    def __init__(self, change: Change | None = None, dies_of: Collection[int] = ()):
        self._runner = SimulatedRunner(NUM_PAGES, PAGE_SIZE, VOCAB_SIZE)
        limits, budget = Limits(CONTEXT, VOCAB_SIZE, (2,)), Budget(MAX_NUM_SEQS, 32)
        self._scheduler = Scheduler(BlockAllocator(NUM_PAGES, PAGE_SIZE), limits, budget)
        self._change = change
        self._dies_of = set(dies_of)
        self.receivers: list[str] = []
        self.poisons: list[Poison] = []
        self.sent: list[Any] = []

    def send(self, receiver: str, message: Any) -> None:
        assert kind_of(receiver) == "scheduler"
        self.receivers.append(receiver)
        self.sent.append(message)
        self._scheduler.receive(message)
        uids = {one.uid for one in self.sent if isinstance(one, UserMsg)}
        if self._dies_of and self._dies_of <= uids:
            raise ServerEndedError("the server has ended:\nscheduler was killed by SIGSEGV")

    def poison(self, poisons: Sequence[Poison]) -> None:
        self.poisons = list(poisons)

    def put_images(self, files: Iterable[Path]) -> None:
        assert not list(files)

    def receive(self, timeout_s: float) -> list[Any]:
        batch = self._scheduler.schedule()
        if batch is not None:
            output = self._runner.run(batch)
            self._scheduler.commit(self._change(batch, output) if self._change else output)
        return list(self._scheduler.pop_replies())


class Answering:
    """A process that has an answer to each message: the tokenizer's or the detokenizer's code."""

    def __init__(self, answer: Callable[[Any], Iterable[Any]]):
        self._answer = answer
        self._answers: list[Any] = []

    def send(self, receiver: str, message: Any) -> None:
        self._answers += self._answer(message)

    def receive(self, timeout_s: float) -> list[Any]:
        answers, self._answers = self._answers, []
        return answers


def tokenizer_alone(model_dir: Path) -> Answering:
    return Answering(load_server(config_of(model_dir)).answer)


def detokenizer_alone(model_dir: Path) -> Answering:
    detokenizer = Detokenizer(load_vocabulary(str(model_dir), VOCAB_SIZE))

    def answer(message: Any) -> list[Any]:
        replies, stops = detokenizer.handle(message)
        return [*replies, *stops]

    return Answering(answer)


def config_of(model_dir: Path) -> Config:
    names = str(model_dir), str(model_dir)
    facts = ModelFacts(
        model_dir=names[0], tokenizer_dir=names[1], served_names=("m",), vocab_size=VOCAB_SIZE, max_model_len=CONTEXT
    )
    return Config(facts=facts)


def record(
    folder: Path, process: str, server: SchedulerAlone | Answering, messages: Sequence[Any], pid: int = 1
) -> list[Any]:
    """Makes the server process the messages and records it; returns the replies.

    A number in place of a message is a number of steps to run first.
    """
    write_manifest(folder, make_manifest(config_of(folder)))
    writer = FrameWriter(folder / f"{process}.{pid}.frames", process, 1 << 20)
    numbers = {0: 0, IS_SENT: 0}
    replies: list[Any] = []

    def keep(flags: int, receiver: str, message: Any) -> None:
        numbers[flags] += 1
        frame = HEADER.pack(pid * 10 + flags, numbers[flags]) + msgspec.msgpack.encode(message)
        writer.add(flags, receiver.encode(), frame)

    def collect() -> bool:
        news = server.receive(0.0)
        for reply in news:
            keep(IS_SENT, receiver_of(process, reply), reply)
        replies.extend(news)
        return bool(news)

    for message in messages:
        if isinstance(message, int):
            for _ in range(message):
                collect()
        else:
            keep(0, process, message)
            server.send(process, message)
    while collect():
        pass
    return replies


def receiver_of(process: str, message: Any) -> str:
    if process == "scheduler":
        return "detokenizer"
    return "scheduler" if isinstance(message, UserMsg | StopSeen) else "frontend"
