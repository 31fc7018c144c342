"""Control characters of others, which command a terminal."""

import os

from runtime.terminal import without_controls
from supervisor.console import Console


def test_all_control_characters_but_lines_and_tabs_go():
    every = "".join(map(chr, range(0x100)))
    kept = without_controls(every)
    assert kept == "\t\n" + "".join(map(chr, [*range(0x20, 0x7F), *range(0xA0, 0x100)]))
    assert without_controls("é 世界 🙂\n") == "é 世界 🙂\n"


def test_the_operators_console_shows_none_of_a_process():
    read, write = os.pipe()
    Console(write).relay("frontend", 1, ["a\x1b]0;title\x07b"])
    os.close(write)
    with os.fdopen(read) as file:
        assert file.read() == "frontend     a]0;titleb\n"
