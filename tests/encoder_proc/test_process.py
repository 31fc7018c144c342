"""The main loop as a real process around a simulated tower; the test plays its launcher and the schedulers."""

import signal
from collections.abc import Iterator
from typing import Any

import pytest

from messages.columns import pack_int32, unpack_int32
from messages.config.images import VisionFacts
from messages.config.server import Config, ModelFacts
from messages.control.processes import Beat, Ready
from messages.ring.encodings import (
    ROW_NOTE,
    EncodeImage,
    EncoderStarted,
    EngineStarted,
    ForgetImage,
    ImageEncoded,
    OpenAsks,
    key_of,
)
from messages.ring.images import ImageInput
from messages.ring.requests import ToScheduler
from runtime.row_file import RowFile
from tests.encoder_proc.simulated_process import BAD, BROKEN, DEADLY, SLOW_HEIGHT, path_of
from tests.fake_launcher import FakeLauncher
from tests.scheduler_proc.simulated_spans import row_value

MODULE = "tests.encoder_proc.simulated_process"
FACTS = ModelFacts(
    model_dir="/none",
    tokenizer_dir="/none",
    served_names=("simulated",),
    vocab_size=10,
    max_model_len=64,
    vision=VisionFacts(family="none", processor=b""),
)


def image_of(width: int, height: int = 5) -> ImageInput:
    return ImageInput(width.to_bytes(8) + height.to_bytes(8), width, height, param=f"messages[{width}]")


class Engine:
    """The scheduler of an engine, played by the test."""

    def __init__(self, launcher: FakeLauncher, number: int = 1):
        self.launcher, self.number = launcher, number
        name = "scheduler" if number == 1 else f"scheduler-{number}"
        path = launcher.run_dir.rows_file(name)
        path.touch()
        self.file = RowFile(path, 20, 4)
        self.receiver = launcher.open_receiver(name, ToScheduler)
        self.sender = launcher.open_sender("encoder")

    def ask(self, ask: int, image: ImageInput, places: tuple[int, ...], owner: int | None = None) -> None:
        for index, place in enumerate(places):
            key = key_of(image.encoding_digest(), len(places))
            ROW_NOTE.pack_into(self.file.notes, place * ROW_NOTE.size, key, index, owner or ask, 0)
        self.sender.send(EncodeImage(ask, self.number, image, 1, pack_int32(places)))

    def take(self) -> Any:
        return self.launcher.take_one(self.receiver)

    def rows(self, places: tuple[int, ...]) -> list[int]:
        rows = unpack_int32(bytes(self.file.rows))
        return [rows[place] for place in places]


@pytest.fixture
def launcher() -> Iterator[FakeLauncher]:
    with FakeLauncher(Config(facts=FACTS)) as launcher:
        yield launcher


def start(launcher: FakeLauncher) -> None:
    launcher.processes["encoder"] = launcher.start(MODULE, "--name", "encoder")
    del launcher.processes[MODULE]
    launcher.wait_for("encoder", Ready)


def start_busy(launcher: FakeLauncher) -> tuple[Engine, ImageInput]:
    """Returns an engine whose ask 1 is in work, and its image, which waits until its file is there."""
    engine = Engine(launcher)
    start(launcher)
    engine.take()
    slow = image_of(2, SLOW_HEIGHT)
    engine.ask(1, slow, (0, 1))
    launcher.wait_for("encoder", Beat, where=lambda beat: beat.busy_since_ns > 0)
    return engine, slow


def expected(image: ImageInput) -> list[int]:
    return [row_value(image.encoding_digest(), row) for row in range(image.width)]


def test_images_of_two_engines_are_encoded_in_the_order_asked_each_into_its_own_file(launcher: FakeLauncher):
    first, second = Engine(launcher), Engine(launcher, 2)
    start(launcher)
    assert first.take() == second.take() == EncoderStarted("encoder")
    asks = [(first, 1, image_of(3), (4, 0, 2)), (second, 1, image_of(2), (0, 7)), (first, 2, image_of(1), (9,))]
    for engine, ask, image, places in asks:
        engine.ask(ask, image, places)
    for engine, ask, image, places in asks:
        answer = engine.take()
        assert isinstance(answer, ImageEncoded)
        assert (answer.ask, answer.num_rows, answer.error) == (ask, len(places), None)
        assert answer.checksum == engine.file.checksum(places)
        assert engine.rows(places) == expected(image)
    launcher.wait_for("encoder", Beat, where=lambda beat: sum(beat.histograms["image_seconds"].counts) == 3)


def test_what_cannot_be_encoded_is_answered_with_an_error_and_stale_asks_write_nothing(launcher: FakeLauncher):
    engine = Engine(launcher)
    start(launcher)
    engine.take()
    for ask, (width, status, text) in enumerate([(BAD, 400, "it is no image"), (BROKEN, 500, "ArithmeticError")], 1):
        engine.ask(ask, image_of(width), (0,))
        answer = engine.take()
        assert (answer.num_rows, answer.error.status, answer.error.param) == (0, status, f"messages[{width}]")
        assert text in answer.error.message
    engine.ask(3, image_of(2), (0,))
    assert engine.take().error.status == 500, "8 bytes for a row"
    engine.ask(4, image_of(2), (0, 1), owner=5)
    assert engine.take() == ImageEncoded(4)
    assert engine.rows((0, 1)) == [0, 0], "the places are another ask's"


def test_a_forgotten_image_is_not_encoded_and_a_new_engine_begins_anew(launcher: FakeLauncher):
    engine, slow = start_busy(launcher)
    engine.ask(2, image_of(1), (2,))
    engine.ask(3, image_of(3), (3, 4, 5))
    engine.sender.send(ForgetImage(2, 1))
    engine.sender.send(ForgetImage(1, 1))
    assert engine.take() == ImageEncoded(2), "the first has begun"
    engine.sender.send(EngineStarted(1))
    assert engine.take() == EncoderStarted("encoder")
    for place in (0, 1):
        ROW_NOTE.pack_into(engine.file.notes, place * ROW_NOTE.size, b"", 0, 0, 0)
    engine.ask(7, image_of(1), (2,))
    path_of(slow, launcher.run_dir.path).touch()
    assert engine.take() == ImageEncoded(1), "it was asked for by the engine before"
    assert engine.take().ask == 7, "the third is forgotten"
    assert engine.rows((0, 1, 3)) == [0, 0, 0]


def test_asks_that_an_encoder_does_not_know_are_answered(launcher: FakeLauncher):
    engine, slow = start_busy(launcher)
    engine.ask(2, image_of(1), (2,))
    engine.sender.send(OpenAsks(1, (1, 2, 3)))
    assert engine.take() == ImageEncoded(3), "one is in work, one waits"
    path_of(slow, launcher.run_dir.path).touch()
    assert [engine.take().num_rows for _ in range(2)] == [2, 1]


def test_the_image_that_ends_a_process_is_named_by_the_next_one_and_by_no_other(launcher: FakeLauncher):
    engine = Engine(launcher)
    start(launcher)
    assert engine.take().suspect == b""
    engine.ask(1, image_of(DEADLY), (0,))
    assert launcher.wait_exit("encoder") == -signal.SIGKILL
    start(launcher)
    assert engine.take() == EncoderStarted("encoder", image_of(DEADLY).encoding_digest())
    engine.ask(2, image_of(1), (0,))
    assert engine.take().num_rows == 1
    launcher.stop("encoder")
    start(launcher)
    assert engine.take().suspect == b""
