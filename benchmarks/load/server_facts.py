"""Facts of the server under test (readiness, vocabulary, context, tokenizer), and single JSON requests to it."""

import http.client
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.load.answer import refusal_text
from benchmarks.load.connection import Target
from messages.errors import SluiceError

ANSWER_TIMEOUT_S = 10.0


class ServerUnavailableError(SluiceError):
    """The server under test cannot be measured: nothing answers, or it is not ready."""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """Facts of the server's model; `max_model_len` is the longest prompt plus output, in tokens."""

    model: str
    vocab_size: int
    max_model_len: int
    tokenizer_dir: Path | None = None


def ask_server(target: Target) -> ServerFacts:
    """Returns the facts of a ready server. Raises `ServerUnavailableError` with advice if there is none."""
    status, body = get(target, "/health")
    if status == 401:
        raise ServerUnavailableError(f"{target.origin} wants an API key: set SLUICE_API_KEY")
    if status != 200:
        raise ServerUnavailableError(f"the server at {target.origin} is not ready ({status}): {_health_text(body)}")
    status, body = get(target, "/server_info")
    if status != 200:
        raise ServerUnavailableError(f"{target.origin}/server_info answers {status}: {refusal_text(body)}")
    facts = _find_facts(msgspec.json.decode(body))
    if facts is None:
        raise ServerUnavailableError(f"{target.origin}/server_info names no vocab_size and max_model_len")
    names = facts.get("served_names") or ["?"]
    directory = Path(str(facts.get("tokenizer_dir") or "/nonexistent"))
    return ServerFacts(
        model=str(names[0]),
        vocab_size=int(facts["vocab_size"]),
        max_model_len=int(facts["max_model_len"]),
        tokenizer_dir=directory if directory.is_dir() else None,
    )


def get(target: Target, path: str) -> tuple[int, bytes]:
    """Returns status and body. Raises `ServerUnavailableError` if no answer comes within 10 s."""
    connection = http.client.HTTPConnection(target.host, target.port, timeout=ANSWER_TIMEOUT_S)
    try:
        headers = {"Authorization": f"Bearer {target.api_key}"} if target.api_key else {}
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, http.client.HTTPException) as error:
        raise ServerUnavailableError(
            f"nothing answers at {target.origin}{path} ({error}): start a server with `python launch.py --model DIR`, "
            "or give its address with --url"
        ) from None
    finally:
        connection.close()


def _find_facts(info: Any) -> dict[str, Any] | None:
    """The object of the reply, at any depth, that holds the model's facts."""
    if not isinstance(info, dict):
        return None
    if "vocab_size" in info and "max_model_len" in info:
        return info
    return next((found for value in info.values() if (found := _find_facts(value))), None)


def _health_text(body: bytes) -> str:
    return " ".join(body[:500].decode(errors="replace").split())


def post_json(target: Target, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Returns the body of a 200. Raises `ServerUnavailableError` for any other answer and for none."""
    connection = http.client.HTTPConnection(target.host, target.port, timeout=target.timeout_s)
    headers = {"Content-Type": "application/json"}
    if target.api_key:
        headers["Authorization"] = f"Bearer {target.api_key}"
    try:
        connection.request("POST", path, json.dumps(body), headers)
        response = connection.getresponse()
        text = response.read()
    except (OSError, http.client.HTTPException) as error:
        raise ServerUnavailableError(f"{target.origin}{path}: {error}") from None
    finally:
        connection.close()
    if response.status != 200:
        raise ServerUnavailableError(f"{target.origin}{path} answers {response.status}: {text[:200]!r}")
    return json.loads(text)
