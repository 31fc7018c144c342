"""`launch.py run [MODEL] [PROMPT] [flags]`: a chat in the terminal, with a server that runs or one of its own.

    launch.py run MODEL
    launch.py run MODEL "Name the capital of France."
    cat notes.txt | launch.py run MODEL "Summarize this."

MODEL is as after --model, or a name that a running server serves. Flags of the server start one. In the chat, /help
lists the commands; Ctrl-C stops an answer, Ctrl-D ends the chat.
"""

import json
import readline
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from extras.home.server import Target, opened_server, read_reply
from messages.errors import SluiceError
from messages.program import PROGRAM
from runtime.terminal import without_controls
from supervisor.model.gguf.cache import cache_dir
from supervisor.programs import program_parser

MAX_LINES = 1000


@contextmanager
def kept_history() -> Generator[None]:
    """Reads the history for the block and writes it at the end. Without a cache directory there is none."""
    path = cache_dir().with_name("history")
    with suppress(OSError):
        readline.read_history_file(path)
    readline.set_history_length(MAX_LINES)
    try:
        yield
    finally:
        with suppress(OSError):
            path.touch(mode=0o600)
            readline.write_history_file(path)


DIM, PLAIN = "\033[2m", "\033[0m"
QUOTES = '"""'
HELP = """\
/set system TEXT        the system prompt
/set NAME VALUE         a sampling parameter of /v1/chat/completions, such as temperature 0.2
/models                 the models of the server
/model NAME             continue with another of them
/show                   the settings and the number of messages
/clear                  forget the conversation
/undo                   forget the last question and its answer
/bye                    end
Lines between \"\"\" and \"\"\" are one message."""


class Chat:
    """A conversation with a model, and how its answers are sampled."""

    def __init__(self, target: Target, *, is_terminal: bool):
        self._target = target
        self._is_terminal = is_terminal
        self.system = ""
        self.settings: dict[str, Any] = {}
        self.messages: list[dict[str, str]] = []

    def ask(self, text: str) -> None:
        """Prints the answer to `text` as it arrives, and remembers both. Raises `SluiceError`, `OSError`."""
        self.messages.append({"role": "user", "content": text})
        begin_s = time.monotonic()
        pieces: list[str] = []
        usage: dict[str, Any] = {}
        is_reasoning = False
        try:
            for chunk in self._chunks():
                usage = chunk.get("usage") or usage
                for choice in chunk["choices"]:
                    delta = choice["delta"]
                    thought, stated = delta.get("reasoning_content") or "", delta.get("content") or ""
                    if bool(thought) != is_reasoning and (thought or stated):
                        is_reasoning = bool(thought)
                        self._write(self._style(DIM if is_reasoning else f"{PLAIN}\n\n"))
                    self._write(without_controls(thought + stated))
                    pieces.append(stated)
        except KeyboardInterrupt:
            usage = {}
        finally:
            self._write(self._style(PLAIN) + "\n")
        self.messages.append({"role": "assistant", "content": "".join(pieces)})
        if usage and self._is_terminal:
            num_tokens, seconds = usage["completion_tokens"], time.monotonic() - begin_s
            print(f"{DIM}{num_tokens} tokens, {num_tokens / seconds:.1f} tokens/s{PLAIN}")

    def models(self) -> str:
        """Raises `SluiceError`, `OSError`."""
        cards = self._target.models()
        return "\n".join(f"{card['id']}  {card.get('status', {}).get('value', 'loaded')}" for card in cards)

    def change(self, model: str) -> None:
        self._target = self._target._replace(model=model)

    def undo(self) -> None:
        del self.messages[-2:]

    def set(self, words: str) -> None:
        """Raises `SluiceError` for a value that is not JSON."""
        name, _, value = words.strip().partition(" ")
        if name == "system":
            self.system = value
            return
        try:
            self.settings[name] = json.loads(value)
        except ValueError:
            raise SluiceError(f'/set {name}: the value must be JSON, such as 0.2, true or "text"') from None

    def show(self) -> str:
        parts = {"model": self._target.model, "system": self.system, **self.settings, "messages": len(self.messages)}
        return "\n".join(f"{name}: {value}" for name, value in parts.items())

    def _chunks(self) -> Iterator[dict[str, Any]]:
        system = [{"role": "system", "content": self.system}] if self.system else []
        body = {
            "sampling_defaults": "chat",
            **self.settings,
            "model": self._target.model,
            "messages": [*system, *self.messages],
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        with self._target.request("/v1/chat/completions", body) as response:
            if response.status != 200:
                self.messages.pop()
                read_reply(response)
            for line in response:
                data = line.removeprefix(b"data: ").strip()
                if not line.startswith(b"data: ") or data == b"[DONE]":
                    continue
                chunk = json.loads(data)
                if "error" in chunk:
                    raise SluiceError(chunk["error"]["message"])
                yield chunk

    def _style(self, text: str) -> str:
        return text if self._is_terminal else ""

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


def converse(chat: Chat) -> None:
    """Reads messages and commands until the end of the input."""
    with kept_history(), suppress(EOFError):
        while (text := _read_message()) != "/bye":
            with suppress(KeyboardInterrupt):
                _obey(chat, text)


def _read_message() -> str:
    """Returns the next message, without the quotes of one with several lines. Raises `EOFError`."""
    try:
        text = input(">>> ")
        if not text.startswith(QUOTES):
            return text.strip()
        lines = [text.removeprefix(QUOTES)]
        while not lines[-1].rstrip().endswith(QUOTES) or len(lines[-1].strip()) < len(QUOTES):
            lines.append(input("... "))
        lines[-1] = lines[-1].rstrip().removesuffix(QUOTES)
        return "\n".join(lines).strip()
    except KeyboardInterrupt:
        print()
        return ""


def _obey(chat: Chat, text: str) -> None:
    command, _, words = text.partition(" ")
    try:
        match command:
            case "":
                pass
            case "/set" if words:
                chat.set(words)
            case "/models":
                print(without_controls(chat.models()))
            case "/model" if words:
                chat.change(words)
            case "/show":
                print(chat.show())
            case "/clear":
                chat.messages.clear()
            case "/undo":
                chat.undo()
            case _ if command.startswith("/"):
                print(HELP)
            case _:
                chat.ask(text)
    except (SluiceError, OSError) as error:
        print(without_controls(str(error)), file=sys.stderr)


def main() -> int:
    """Returns 0, 1 if there is no server or no answer, 130 if interrupted."""
    parser = program_parser("run", __doc__)
    parser.add_argument("model", nargs="?", default="", metavar="MODEL")
    parser.add_argument("prompt", nargs="?", default="", metavar="PROMPT")
    options, flags = parser.parse_known_args()
    is_terminal = sys.stdin.isatty()
    texts = [options.prompt, "" if is_terminal else sys.stdin.read().strip()]
    prompt = "\n\n".join(filter(None, texts))
    try:
        with opened_server(options.model, flags) as target:
            chat = Chat(target, is_terminal=is_terminal and sys.stdout.isatty())
            if prompt:
                chat.ask(prompt)
            else:
                converse(chat)
    except (SluiceError, OSError) as error:
        print(without_controls(f"{PROGRAM} run: {error}"), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
