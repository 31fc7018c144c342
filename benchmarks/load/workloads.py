"""Planned requests: random or real text with their arrival times, the same for the same seed."""

import gzip
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from tokenizers import Tokenizer

from benchmarks.load.server_facts import ServerFacts
from extras.whatif.traces import random_ids
from messages.errors import UsageError

Prompt = str | list[int]


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One request: sent `at_s` seconds after the start (0 in a closed loop, where it is sent when its turn comes)."""

    prompt: Prompt
    max_tokens: int
    at_s: float = 0.0


@dataclass(frozen=True, slots=True)
class LengthRange:
    """Lengths in tokens, drawn evenly from `low` to `high`, both included."""

    low: int
    high: int

    def draw(self, rng: np.random.Generator) -> int:
        return int(rng.integers(self.low, self.high, endpoint=True))


@dataclass(frozen=True, slots=True)
class Lengths:
    """How long prompts and outputs are, in tokens."""

    input: LengthRange
    output: LengthRange

    def check(self, max_model_len: int) -> None:
        """Raises `UsageError` if the longest request does not fit in the server's context."""
        longest = self.input.high + self.output.high
        if longest > max_model_len:
            raise UsageError(
                f"--input-tokens {self.input.high} and --output-tokens {self.output.high} make {longest} tokens; "
                f"the server's context is {max_model_len}"
            )


@dataclass(frozen=True, slots=True)
class SamplingFields:
    """The fields that all requests of a run share. `cache_salt` keeps a run from finding what an earlier one cached."""

    temperature: float = 0.0
    ignore_eos: bool = False
    cache_salt: str = ""

    def body(self, planned: PlannedRequest) -> bytes:
        """Returns the JSON body of `POST /generate`."""
        fields: dict[str, object] = {
            "prompt": planned.prompt,
            "max_tokens": planned.max_tokens,
            "temperature": self.temperature,
            "ignore_eos": self.ignore_eos,
            "stream": True,
        }
        if self.cache_salt:
            fields["cache_salt"] = self.cache_salt
        return msgspec.json.encode(fields)


def parse_range(text: str) -> LengthRange:
    """`128` or `100:1024`. Raises `ValueError`."""
    low, _, high = text.partition(":")
    lengths = LengthRange(int(low), int(high or low))
    if not 1 <= lengths.low <= lengths.high:
        raise ValueError(f"{text} is empty or begins below 1")
    return lengths


def random_prompts(vocab_size: int, lengths: Lengths, num_shared: int, seed: int) -> Iterator[PlannedRequest]:
    """Yields prompts of random token ids without end; the first `num_shared` ids are the same in all of them."""
    rng = np.random.default_rng([seed, 0])
    shared = random_ids(rng, vocab_size, num_shared)
    while True:
        num_input, num_output = lengths.input.draw(rng), lengths.output.draw(rng)
        prompt = shared[:num_input] + random_ids(rng, vocab_size, num_input - num_shared)
        yield PlannedRequest(prompt, num_output)


def with_poisson_arrivals(requests: Iterator[PlannedRequest], rate: float, seed: int) -> Iterator[PlannedRequest]:
    """Yields the same requests with the arrival times of a Poisson process of `rate` a second."""
    rng = np.random.default_rng([seed, 1])
    at_s = 0.0
    for request in requests:
        yield PlannedRequest(request.prompt, request.max_tokens, at_s)
        at_s += float(rng.exponential(1 / rate))


DEFAULT_DIR = Path(__file__).resolve().parents[3] / "shared" / "prompts"
SOURCES = ("mt-bench", "gsm8k", "humaneval", "tinyshakespeare", "big-bench-hard")
SPARE_TOKENS = 8
"""Left free of the context: where two texts meet, or the tokenizer adds its own, a prompt can get a bit longer."""


class TextCutter:
    """Cuts text to a number of tokens with the server's own tokenizer.

    Where that cannot be read (a server elsewhere), a token is taken for a byte: prompts get shorter, never longer.
    """

    def __init__(self, facts: ServerFacts):
        file = facts.tokenizer_dir / "tokenizer.json" if facts.tokenizer_dir else None
        self._tokenizer = Tokenizer.from_file(str(file)) if file and file.is_file() else None

    def cut(self, text: str, num_tokens: int) -> str:
        """Returns the beginning of `text` that is at most `num_tokens` long."""
        if self._tokenizer is None:
            return text.encode()[:num_tokens].decode(errors="ignore")
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        return text if len(encoding) <= num_tokens else text[: encoding.offsets[num_tokens][0]]


def text_prompts(
    source: str, folder: Path, cutter: TextCutter, lengths: Lengths, seed: int
) -> Iterator[PlannedRequest]:
    """Returns an endless stream of prompts of one of `SOURCES`, each at most `lengths.input.high` tokens long.

    The order is seeded. `tinyshakespeare` is cut to lengths drawn from the range; the others keep theirs up to its end.
    Raises `UsageError` if the texts are missing.
    """
    if not (folder / source).is_dir():
        raise UsageError(f"--prompts {source}: {folder / source} does not exist; give --prompts-dir")
    rng = np.random.default_rng([seed, 2])
    if source == "tinyshakespeare":
        texts = _passages(_read(folder / source / "input.txt"), cutter, lengths.input, rng)
    elif source == "big-bench-hard":
        texts = _few_shot(folder, cutter, lengths.input.high, rng)
    else:
        texts = (cutter.cut(text, lengths.input.high) for text in _shuffled(_questions(source, folder / source), rng))
    return (PlannedRequest(text, lengths.output.draw(rng)) for text in texts)


def _questions(source: str, folder: Path) -> list[str]:
    if source == "humaneval":
        lines = gzip.decompress((folder / "HumanEval.jsonl.gz").read_bytes()).decode().splitlines()
        return [json.loads(line)["prompt"] for line in lines]
    if source == "mt-bench":
        return [json.loads(line)["turns"][0] for line in _read(folder / "question.jsonl").splitlines()]
    return [json.loads(line)["question"] for line in _read(folder / "test.jsonl").splitlines()]


def _shuffled(texts: list[str], rng: np.random.Generator) -> Iterator[str]:
    """Yields all texts in a random order, then all of them again in another."""
    while True:
        for index in rng.permutation(len(texts)):
            yield texts[index]


def _passages(text: str, cutter: TextCutter, lengths: LengthRange, rng: np.random.Generator) -> Iterator[str]:
    longest_token_chars = 16
    while True:
        num_tokens = lengths.draw(rng)
        begin = int(rng.integers(0, max(1, len(text) - longest_token_chars * num_tokens)))
        yield cutter.cut(text[begin : begin + longest_token_chars * num_tokens], num_tokens)


def _few_shot(folder: Path, cutter: TextCutter, num_tokens: int, rng: np.random.Generator) -> Iterator[str]:
    """Yields each task's worked examples with ever other questions behind them.

    In a small context the examples are cut to three quarters of the room, at the same place in all prompts of a task.
    """
    room = num_tokens - SPARE_TOKENS
    files = sorted((folder / "big-bench-hard" / "cot-prompts").glob("*.txt"))
    prefixes = [cutter.cut(_read(file).split("-----\n", 1)[-1].strip(), room * 3 // 4) for file in files]
    questions = _shuffled(_questions("gsm8k", folder / "gsm8k"), rng)
    for prefix in itertools.cycle(prefixes):
        question = cutter.cut(next(questions), room // 4 - SPARE_TOKENS)
        yield f"{prefix}\n\nQ: {question}\nA:"


def _read(file: Path) -> str:
    return file.read_text(encoding="utf-8")
