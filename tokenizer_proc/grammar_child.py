"""`python -m tokenizer_proc.grammar_child PARENT_PID`: checks grammars in a process that may be killed at any time.

A grammar of a few lines can take minutes and gigabytes to compile, or be nested so deeply that the process crashes.
Frames (`child_process.py`) are msgpack: first `ModelFacts`, with an empty reply when the tokenizer is loaded, then one
`GrammarCheck` in reply to each `Grammar`.
"""

import resource
import threading
import time
from typing import IO

import msgspec

from messages.config.server import ModelFacts
from messages.errors import ErrorInfo, RequestError
from messages.ring.requests import Grammar
from runtime.background import STACK_BYTES
from runtime.child_process import lower_limit, open_pipes, read_frame, write_frame
from tokenizer_proc.grammars import GrammarReader

MAX_CPU_S = 2
"""The limit for one grammar. Real schemas take a few milliseconds."""

MAX_BYTES = 4 << 30


class GrammarCheck(msgspec.Struct, frozen=True):
    """The grammar in llguidance's form, or why it cannot be used."""

    grammar: Grammar | None = None
    error: ErrorInfo | None = None


def serve(requests: IO[bytes], replies: IO[bytes]) -> None:
    """Checks grammars until the parent closes its end. One that exceeds `MAX_CPU_S` ends the process."""
    reader = GrammarReader(msgspec.msgpack.decode(read_frame(requests) or b"", type=ModelFacts))
    reader.load()
    write_frame(replies, b"")
    while (body := read_frame(requests)) is not None:
        lower_limit(resource.RLIMIT_CPU, int(time.process_time()) + 1 + MAX_CPU_S)
        try:
            checked = GrammarCheck(reader.check(msgspec.msgpack.decode(body, type=Grammar)))
        except RequestError as refusal:
            checked = GrammarCheck(error=refusal.info)
        write_frame(replies, msgspec.msgpack.encode(checked))


def main() -> None:
    requests, replies = open_pipes()
    lower_limit(resource.RLIMIT_CORE, 0)
    lower_limit(resource.RLIMIT_AS, MAX_BYTES)
    threading.stack_size(STACK_BYTES)
    thread = threading.Thread(target=serve, args=(requests, replies))
    thread.start()
    thread.join()


if __name__ == "__main__":
    main()
