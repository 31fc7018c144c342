"""`python -m tokenizer_proc.grammar_child PARENT_PID`: checks grammars in a process that may be ended at any time.

A grammar of a few lines can take minutes and gigabytes to compile, or go so deep that its process ends. Frames are a
length of four bytes and JSON: `ModelFacts` at first, then a `Grammar` for each `Checked` that comes back.
"""

import os
import resource
import signal
import sys
import threading
import time
from typing import IO

import msgspec

from messages.config import ModelFacts
from messages.errors import ErrorInfo, RequestError
from messages.requests import Grammar
from runtime.background import STACK_BYTES
from runtime.lifeline import ask_for_death_signal
from tokenizer_proc.grammars import GrammarReader

MAX_CPU_S = 2
"""Of one grammar. Real schemas take some milliseconds."""

MAX_BYTES = 4 << 30


class Checked(msgspec.Struct, frozen=True):
    """The grammar in llguidance's form, or why it cannot be used."""

    grammar: Grammar | None = None
    error: ErrorInfo | None = None


def read_frame(stream: IO[bytes]) -> bytes | None:
    """Returns the next frame, `None` at the end of the stream."""
    head = stream.read(4)
    size = int.from_bytes(head, "little")
    body = stream.read(size)
    return body if len(head) == 4 and len(body) == size else None


def write_frame(stream: IO[bytes], body: bytes) -> None:
    stream.write(len(body).to_bytes(4, "little") + body)
    stream.flush()


def serve(requests: IO[bytes], replies: IO[bytes]) -> None:
    """Checks grammars until the parent closes its end. One that takes too much CPU time ends the process."""
    reader = GrammarReader(msgspec.json.decode(read_frame(requests) or b"", type=ModelFacts))
    reader.load()
    while (body := read_frame(requests)) is not None:
        resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + 1 + MAX_CPU_S, resource.RLIM_INFINITY))
        try:
            checked = Checked(reader.check(msgspec.json.decode(body, type=Grammar)))
        except RequestError as refusal:
            checked = Checked(error=refusal.info)
        write_frame(replies, msgspec.json.encode(checked))


def main(parent_pid: int) -> None:
    ask_for_death_signal(parent_pid, signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no reply
    threading.stack_size(STACK_BYTES)
    thread = threading.Thread(target=serve, args=(sys.stdin.buffer, replies))
    thread.start()
    thread.join()


if __name__ == "__main__":
    main(int(sys.argv[1]))
