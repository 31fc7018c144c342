import argparse

import pytest

from extras.faults.inject import add_options, read_command
from extras.faults.messages import ClearFaults, DamagePages, EdgeFault, Poison, SignalSelf, Starve, StopReading, wrap
from messages.columns import pack_int32
from messages.control.admin import InstructProcesses


def read(*arguments: str) -> InstructProcesses:
    parser = argparse.ArgumentParser()
    add_options(parser)
    return read_command(parser.parse_args(arguments))


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        ("kill scheduler", InstructProcesses(("scheduler",), wrap(SignalSelf("kill")))),
        ("stop tokenizer --seconds 2", InstructProcesses(("tokenizer",), wrap(SignalSelf("stop")))),
        ("drop scheduler>detokenizer", InstructProcesses(("scheduler",), wrap(EdgeFault("detokenizer", "drop")))),
        (
            "drop tokenizer:scheduler --frames 3",
            InstructProcesses(("tokenizer",), wrap(EdgeFault("scheduler", "drop", 3))),
        ),
        (
            "duplicate detokenizer:frontend --probability 0.5",
            InstructProcesses(("detokenizer",), wrap(EdgeFault("frontend", "duplicate", 1, 0.5))),
        ),
        (
            "delay frontend:tokenizer --seconds 0.2",
            InstructProcesses(("frontend",), wrap(EdgeFault("tokenizer", "delay", 1, 0.0, 0.2))),
        ),
        ("poison --uid 7", InstructProcesses(("scheduler*",), wrap(Poison("kill", 7)))),
        (
            "poison --token-ids 1,2 --fail",
            InstructProcesses(("scheduler*",), wrap(Poison("fail", token_ids=pack_int32([1, 2])))),
        ),
        ("starve", InstructProcesses(("scheduler*",), wrap(Starve()))),
        ("starve --uid 7", InstructProcesses(("scheduler*",), wrap(Starve(7)))),
        ("damage-pages --pages 3", InstructProcesses(("scheduler*",), wrap(DamagePages(3)))),
        ("stop-reading tokenizer", InstructProcesses(("tokenizer",), wrap(StopReading()))),
        ("clear", InstructProcesses((), wrap(ClearFaults()))),
    ],
)
def test_a_command_becomes_an_instruction(arguments: str, command: InstructProcesses):
    assert read(*arguments.split()) == command


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("kill", "name of a process"),
        ("stop-reading", "name of a process"),
        ("drop scheduler", "FROM:TO"),
        ("drop :scheduler", "FROM:TO"),
        ("drop a:b --frames 0", "at least 1"),
        ("drop a:b --probability 2", r"in \[0, 1\]"),
        ("drop a:b --seconds 2", "only delay"),
        ("delay a:b", "needs --seconds"),
        ("poison", "--uid or --token-ids"),
        ("poison --uid 7 --token-ids 1", "--uid or --token-ids"),
        ("poison --token-ids 1,x", "invalid literal"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: str, text: str):
    with pytest.raises(ValueError, match=text):
        read(*arguments.split())
