import json
import os
import pty
import time
from collections.abc import Iterator

import pytest

from supervisor.console import MAX_HELD_LINES, Console


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    yield reader, writer
    os.close(reader)
    os.close(writer)


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    master, slave = pty.openpty()
    os.set_blocking(master, False)
    yield master, slave
    os.close(master)
    os.close(slave)


def read_all(descriptor: int) -> str:
    data = b""
    while True:
        try:
            data += os.read(descriptor, 1 << 16)
        except BlockingIOError:
            return data.decode()


def test_lines_about_a_process_begin_with_its_name(pipe: tuple[int, int]):
    console = Console(pipe[1])
    console.show_of("tokenizer", "ready in 1.0 s")
    assert read_all(pipe[0]) == "tokenizer    ready in 1.0 s\n"


def test_progress_is_a_line_a_quarter_where_there_is_no_terminal(pipe: tuple[int, int]):
    console = Console(pipe[1])
    for percent in range(101):
        console.progress("scheduler", "loading", percent / 100)
    assert [line.split()[-2] for line in read_all(pipe[0]).splitlines()] == ["25", "50", "75", "100"]


def test_progress_is_a_bar_below_the_lines_on_a_terminal(terminal: tuple[int, int]):
    console = Console(terminal[1])
    console.progress("scheduler", "loading", 0.5)
    bar = f"scheduler    loading [{'#' * 15}{'.' * 15}] 50 %"
    assert read_all(terminal[0]) == f"\r\x1b[K{bar}"
    console.show("a line")
    assert read_all(terminal[0]) == f"\r\x1b[Ka line\r\n{bar}"
    console.progress("scheduler", "loading", 1.0)
    assert read_all(terminal[0]) == "\r\x1b[K"
    console.show("another")
    assert read_all(terminal[0]) == "another\r\n"


def test_a_reader_that_does_not_read_never_blocks_the_writer_and_receives_how_much_it_missed(pipe: tuple[int, int]):
    console = Console(pipe[1])
    began_s = time.monotonic()
    for number in range(10 * MAX_HELD_LINES):
        console.show(f"line {number:<100}")
    assert time.monotonic() - began_s < 30
    text = ""
    while part := read_all(pipe[0]):
        text += part
        console.flush()
    console.show("the terminal reads again")
    text += read_all(pipe[0])
    lines = text.splitlines()
    assert lines[0].split() == ["line", "0"]
    assert lines[-3].split() == ["line", f"{10 * MAX_HELD_LINES - 1}"]
    num_dropped = 10 * MAX_HELD_LINES - (len(lines) - 2)
    assert num_dropped > 0
    assert lines[-2] == f"({num_dropped} lines were dropped: they were not read)"
    assert lines[-1] == "the terminal reads again"


def test_the_progress_of_a_new_incarnation_is_notified_from_its_beginning(pipe: tuple[int, int]):
    console = Console(pipe[1])
    for name in ("scheduler", "tokenizer"):
        console.progress(name, "loading", 0.9)
    console.begin_process("scheduler")
    for name in ("scheduler", "tokenizer"):
        console.progress(name, "loading", 0.5)
    assert read_all(pipe[0]).split("\n")[2:] == ["scheduler    loading 50 %", ""]


def test_a_long_text_arrives_whole(pipe: tuple[int, int]):
    console = Console(pipe[1])
    console.show("x" * 50_000)
    assert read_all(pipe[0]) == "x" * 50_000 + "\n"


def test_a_reader_that_is_gone_is_no_error():
    reader, writer = os.pipe()
    os.close(reader)
    console = Console(writer)
    console.show("the client has gone")
    console.close()
    os.close(writer)


def test_close_waits_for_a_reader_only_so_long(pipe: tuple[int, int]):
    console = Console(pipe[1])
    console.show("x" * 200_000)
    began_s = time.monotonic()
    console.close()
    assert 0.5 < time.monotonic() - began_s < 30


def test_as_json_every_line_is_an_object_and_there_is_no_progress(terminal: tuple[int, int]):
    console = Console(terminal[1])
    console.is_json = True
    console.show("\nready in 1.0 s\n")
    console.show_of("scheduler", "died", "error")
    console.progress("scheduler", "loading", 0.5)
    own = '{"time":"t","level":"debug","process":"scheduler","pid":7,"logger":"l","message":"own","uid":3}'
    console.relay("scheduler", 7, [own, "Segmentation fault"])
    lines = [json.loads(line) for line in read_all(terminal[0]).splitlines()]
    assert [(line["process"], line["level"], line["message"]) for line in lines] == [
        ("launcher", "info", "ready in 1.0 s"),
        ("launcher", "error", "scheduler: died"),
        ("scheduler", "debug", "own"),
        ("scheduler", "info", "Segmentation fault"),
    ]
    assert lines[2] == json.loads(own)
    assert (lines[3]["pid"], lines[3]["logger"]) == (7, "stderr")


def test_as_json_the_notice_of_dropped_lines_is_an_object_too(pipe: tuple[int, int]):
    console = Console(pipe[1])
    console.is_json = True
    for number in range(3 * MAX_HELD_LINES):
        console.show(f"line {number:<100}")
    text = ""
    while part := read_all(pipe[0]):
        text += part
        console.flush()
    console.show("the terminal reads again")
    lines = [json.loads(line) for line in (text + read_all(pipe[0])).splitlines()]
    assert "lines were dropped" in lines[-2]["message"]
    assert lines[-1]["message"] == "the terminal reads again"
