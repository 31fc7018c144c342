"""The process that renders chats: it reads the templates, then one chat at a time, and writes what becomes of each.

    python -m tokenizer_proc.template_child CPU_S

A rendering that takes more than `CPU_S` seconds of CPU time ends the process: nothing of a template can catch that.
"""

import os
import resource
import signal
import sys

import msgspec

from messages.errors import RequestError, bad_request
from messages.requests import ChatPrompt
from runtime.chat_files import ChatFiles
from runtime.lifeline import ask_for_death_signal
from tokenizer_proc.chat import ChatTemplates
from tokenizer_proc.template_process import read_frame, write_frame

MAX_BYTES = 256 << 20
"""Of memory that the templates may take, and a chat's text on its way through them."""


def main() -> int:
    ask_for_death_signal(os.getppid(), signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the end of the tokenizer is the end of this process
    _limit_memory()
    cpu_s = float(sys.argv[1])
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    files = read_frame(source)
    if files is None:
        return 0
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    templates = ChatTemplates(msgspec.msgpack.decode(files, type=ChatFiles))
    signal.setitimer(signal.ITIMER_PROF, 0)
    write_frame(sink, msgspec.msgpack.encode(templates.mistake))
    while (chat := read_frame(source)) is not None:
        signal.setitimer(signal.ITIMER_PROF, cpu_s)
        answer = _answer(templates, chat)
        signal.setitimer(signal.ITIMER_PROF, 0)
        write_frame(sink, answer)
    return 0


def _answer(templates: ChatTemplates, chat: bytes) -> bytes:
    try:
        return msgspec.msgpack.encode(templates.render(msgspec.msgpack.decode(chat, type=ChatPrompt)))
    except RequestError as refusal:
        return msgspec.msgpack.encode(refusal.info)
    except MemoryError:
        pass
    why = f"it needs more than {MAX_BYTES >> 20} MiB of memory"
    return msgspec.msgpack.encode(bad_request(f"The chat template refused the messages: {why}", "messages").info)


def _limit_memory() -> None:
    """Makes allocations fail that would give this process `MAX_BYTES` more than it has; Linux only."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123
            num_bytes = int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return
    resource.setrlimit(resource.RLIMIT_AS, (num_bytes + MAX_BYTES, resource.RLIM_INFINITY))


if __name__ == "__main__":
    sys.exit(main())
