"""Traces of real services as arrivals: their times, lengths and shared prefixes, scaled to a server."""

import csv
import datetime
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from messages.errors import UsageError

MOONCAKE_BLOCK_TOKENS = 512
SPECIAL_IDS = 16
"""Token ids below this are left out of random prompts: that is where vocabularies keep their special tokens."""
FITTING_SHARE = 0.95
"""By default a trace is scaled so that this share of its requests fits the context; longer prompts lose their end."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One recorded request, in the tokens of its trace. Equal `block_ids` mean equal prompts up to there."""

    at_s: float
    num_input: int
    num_output: int
    block_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request for a server: it arrives `at_s` seconds after the start and gets `num_output` tokens.

    These are `output_ids` (int32) where they are known: later prompts may continue them. `engine` serves it.
    """

    prompt_ids: list[int]
    num_output: int
    at_s: float
    output_ids: bytes = b""
    cache_salt: str = ""
    priority: int = 0
    engine: int = 1
    client: str = ""
    share: int = 1


@dataclass(frozen=True, slots=True)
class TraceScale:
    """How a trace is fitted to a server: tokens of ours for one of the trace, and how much faster time passes."""

    tokens: float
    speed: float
    max_model_len: int


def read_trace(path: Path, num_requests: int) -> list[TraceRequest]:
    """Returns the first `num_requests` of a Mooncake `.jsonl` or Azure 2023 `.csv` trace, the first at 0 s.

    Raises `UsageError` for a file that is neither.
    """
    readers = {".jsonl": _read_mooncake, ".csv": _read_azure}
    if path.suffix not in readers:
        raise UsageError(f"{path} is neither .jsonl (Mooncake) nor .csv (Azure 2023)")
    try:
        found = list(itertools.islice(readers[path.suffix](path), num_requests))
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist") from None
    except (KeyError, ValueError) as error:
        raise UsageError(f"{path} does not have the fields of such a trace: {error}") from None
    if not found:
        raise UsageError(f"{path} holds no requests")
    return found


def fit_scale(trace: list[TraceRequest], max_model_len: int, speed: float) -> TraceScale:
    """Returns the scale at which 95 % of the requests fit in the context, and at most 1."""
    longest = float(np.quantile([request.num_input + request.num_output for request in trace], FITTING_SHARE))
    return TraceScale(min(1.0, max_model_len / longest), speed, max_model_len)


def replay(trace: list[TraceRequest], scale: TraceScale, vocab_size: int, seed: int) -> Iterator[Arrival]:
    """Yields the requests of the trace, scaled; prompts are random ids in which equal blocks are equal.

    A prompt that is still too long loses its end, so what it shares with others stays.
    """
    begin_s = trace[0].at_s
    for index, request in enumerate(trace):
        num_output = max(1, min(round(request.num_output * scale.tokens), scale.max_model_len // 2))
        num_input = max(1, min(round(request.num_input * scale.tokens), scale.max_model_len - num_output))
        if request.block_ids:
            prompt = _block_prompt(request.block_ids, num_input, scale.tokens, vocab_size, seed)
        else:
            prompt = random_ids(np.random.default_rng([seed, 3, index]), vocab_size, num_input)
        yield Arrival(prompt, num_output, (request.at_s - begin_s) / scale.speed)


def num_cut(trace: list[TraceRequest], scale: TraceScale) -> int:
    """Returns the number of requests of the trace that exceed the context."""
    return sum(
        round((request.num_input + request.num_output) * scale.tokens) > scale.max_model_len for request in trace
    )


def random_ids(rng: np.random.Generator, vocab_size: int, num_tokens: int) -> list[int]:
    """Returns random ordinary token ids; none for a count below 1."""
    low = min(SPECIAL_IDS, vocab_size - 1)
    return rng.integers(low, vocab_size, size=max(0, num_tokens)).tolist()


def _block_prompt(block_ids: tuple[int, ...], num_input: int, scale: float, vocab_size: int, seed: int) -> list[int]:
    """Block k fills the positions from round(k * size) to round((k + 1) * size), so a whole prompt scales exactly."""
    size = MOONCAKE_BLOCK_TOKENS * scale
    prompt: list[int] = []
    for index, block_id in enumerate(block_ids):
        if len(prompt) >= num_input:
            break
        num_tokens = round((index + 1) * size) - round(index * size)
        prompt += random_ids(np.random.default_rng([seed, 4, block_id]), vocab_size, num_tokens)
    missing = num_input - len(prompt)
    return prompt[:num_input] + random_ids(np.random.default_rng([seed, 5, *block_ids[:1]]), vocab_size, missing)


def _read_mooncake(path: Path) -> Iterator[TraceRequest]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            yield TraceRequest(
                at_s=row["timestamp"] / 1000,
                num_input=row["input_length"],
                num_output=row["output_length"],
                block_ids=tuple(row["hash_ids"]),
            )


def _read_azure(path: Path) -> Iterator[TraceRequest]:
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            when = datetime.datetime.fromisoformat(row["TIMESTAMP"][:26])
            yield TraceRequest(
                at_s=when.replace(tzinfo=datetime.UTC).timestamp(),
                num_input=int(row["ContextTokens"]),
                num_output=int(row["GeneratedTokens"]),
            )
