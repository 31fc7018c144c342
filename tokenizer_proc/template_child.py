"""The process that renders chats: it reads the templates, then replies to each chat with its text or an error.

    python -m tokenizer_proc.template_child PARENT_PID CPU_S

An empty frame in place of a chat requests the error of the default template. A rendering that takes more than `CPU_S`
seconds of CPU time ends the process; no template can catch that.
"""

import signal
import sys

import msgspec

from messages.errors import RequestError, bad_request
from messages.ring.requests import ChatPrompt
from runtime.chat_files import ChatFiles
from runtime.child_process import limit_added_memory, open_pipes, read_frame, write_frame
from tokenizer_proc.chat import ChatTemplates

MAX_BYTES = 256 << 20
"""The memory limit for the templates and the chat being rendered."""


def main() -> int:
    requests, replies = open_pipes()
    limit_added_memory(MAX_BYTES)
    cpu_s = float(sys.argv[2])
    files = read_frame(requests)
    if files is None:
        return 0
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    templates = ChatTemplates(msgspec.msgpack.decode(files, type=ChatFiles))
    signal.setitimer(signal.ITIMER_PROF, 0)
    while (chat := read_frame(requests)) is not None:
        signal.setitimer(signal.ITIMER_PROF, cpu_s)
        answer = _answer(templates, chat) if chat else msgspec.msgpack.encode(templates.mistake)
        signal.setitimer(signal.ITIMER_PROF, 0)
        write_frame(replies, answer)
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


if __name__ == "__main__":
    sys.exit(main())
