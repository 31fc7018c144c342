"""The perplexity of a text, requested from a server."""

import math

import msgspec

from benchmarks.load.connection import Target
from benchmarks.load.server_facts import post_json

PASSAGES_AT_ONCE = 8


class TextScore(msgspec.Struct, frozen=True):
    """`nats`: the mean negative logprob of the `num_tokens` tokens that were predicted."""

    num_tokens: int
    nats: float

    @property
    def perplexity(self) -> float:
        return math.exp(self.nats)


def score_text(target: Target, model: str, text: str, passage_tokens: int) -> TextScore:
    """Returns the score of a text in passages of equal length, all but whose first token is predicted.

    A shorter rest at the end is not scored. Raises `ServerUnavailableError`.
    """
    ids = post_json(target, "/tokenize", {"model": model, "prompt": text, "add_special_tokens": False})["tokens"]
    starts = range(0, len(ids) - passage_tokens + 1, passage_tokens)
    passages = [ids[start : start + passage_tokens] for start in starts]
    logprobs: list[float] = []
    for first in range(0, len(passages), PASSAGES_AT_ONCE):
        asked = {"model": model, "prompt": passages[first : first + PASSAGES_AT_ONCE], "max_tokens": 1}
        answer = post_json(target, "/v1/completions", asked | {"echo": True, "logprobs": 0, "temperature": 0})
        for choice in answer["choices"]:
            logprobs += choice["logprobs"]["token_logprobs"][1:passage_tokens]
    return TextScore(len(logprobs), -math.fsum(logprobs) / len(logprobs))
