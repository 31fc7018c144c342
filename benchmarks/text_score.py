"""How well a served model predicts a text: the mean logprob of its tokens, asked of the server itself."""

import http.client
import json
import math
from typing import Any

import msgspec

from benchmarks.load.connection import Target
from benchmarks.load.server_facts import ServerUnavailableError

PASSAGES_AT_ONCE = 8


class TextScore(msgspec.Struct, frozen=True):
    """`nats`: the mean negative logprob of the `num_tokens` tokens that were predicted."""

    num_tokens: int
    nats: float

    @property
    def perplexity(self) -> float:
        return math.exp(self.nats)


def score_text(target: Target, model: str, text: str, passage_tokens: int) -> TextScore:
    """Returns the score of a text in passages of so many tokens, of which all but the first are predicted.

    What is left over at the end is not scored. Raises `ServerUnavailableError`.
    """
    ids = _post(target, "/tokenize", {"model": model, "prompt": text, "add_special_tokens": False})["tokens"]
    starts = range(0, len(ids) - passage_tokens + 1, passage_tokens)
    passages = [ids[start : start + passage_tokens] for start in starts]
    logprobs: list[float] = []
    for first in range(0, len(passages), PASSAGES_AT_ONCE):
        asked = {"model": model, "prompt": passages[first : first + PASSAGES_AT_ONCE], "max_tokens": 1}
        answer = _post(target, "/v1/completions", asked | {"echo": True, "logprobs": 0, "temperature": 0})
        for choice in answer["choices"]:
            logprobs += choice["logprobs"]["token_logprobs"][1:passage_tokens]
    return TextScore(len(logprobs), -math.fsum(logprobs) / len(logprobs))


def _post(target: Target, path: str, body: dict[str, Any]) -> dict[str, Any]:
    connection = http.client.HTTPConnection(target.host, target.port, timeout=target.timeout_s)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        text = response.read()
    except (OSError, http.client.HTTPException) as error:
        raise ServerUnavailableError(f"{target.origin}{path}: {error}") from None
    finally:
        connection.close()
    if response.status != 200:
        raise ServerUnavailableError(f"{target.origin}{path} answers {response.status}: {text[:200]!r}")
    return json.loads(text)
