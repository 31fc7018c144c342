import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from extras.remote.messages import JOIN_VERSION, ToJoiner, ToProxy
from messages.control.processes import ToLauncher, ToProcess
from messages.ring.peers import ToFrontend
from messages.ring.replies import ToDetokenizer
from messages.ring.requests import ToEncoder, ToScheduler, ToTokenizer
from messages.ring.steps import ToRank
from messages.schema import SCHEMA_VERSION, make_version

ROOT = Path(__file__).resolve().parents[2]


class Inner(msgspec.Struct):
    number: int


def outer(**fields: Any) -> type[msgspec.Struct]:
    return msgspec.defstruct("Outer", list(fields.items()))


@pytest.mark.parametrize(
    "other",
    [
        outer(count=int, text=str),
        outer(num=float, text=str),
        outer(text=str, num=int),
        outer(num=int, text=str, more=int),
        outer(num=int, text=Inner),
        msgspec.defstruct("Other", [("num", int), ("text", str)]),
    ],
)
def test_a_change_of_a_struct_is_another_version(other: type[msgspec.Struct]):
    assert make_version(other) != make_version(outer(num=int, text=str))


def test_structs_inside_of_fields_count():
    inner = msgspec.defstruct("Inner", [("number", int), ("more", int)])
    assert make_version(outer(all=dict[str, tuple[Inner, ...]])) != make_version(
        outer(all=dict[str, tuple[inner, ...]])
    )


def test_the_order_of_a_union_and_a_second_mention_do_not_count():
    assert make_version(Inner | None, Inner) == make_version(None, Inner)


def test_every_process_computes_the_same():
    code = "from messages.schema import SCHEMA_VERSION; print(SCHEMA_VERSION)"
    command = [sys.executable, "-c", code]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout
    assert int(output) == SCHEMA_VERSION
    unions = ToTokenizer, ToEncoder, ToScheduler, ToDetokenizer, ToFrontend, ToLauncher, ToProcess, ToRank
    assert make_version(*unions) == SCHEMA_VERSION
    assert make_version(ToProxy, ToJoiner, ToScheduler, ToDetokenizer, ToRank) == JOIN_VERSION
