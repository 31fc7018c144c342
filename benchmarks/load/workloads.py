"""What is sent and when: seeded streams of planned requests, the same for the same seed."""

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import numpy as np

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
        """Raises `UsageError` where the longest request does not fit in the server's context."""
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
