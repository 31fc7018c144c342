"""Which model a request means: by its body, its query, a header, or because there is only one."""

from typing import Any
from urllib.parse import unquote

import msgspec
from msgspec import Raw
from starlette.requests import Request

from extras.models.model_table import ModelTable
from extras.ollama.endpoints import LATEST
from frontend.errors import not_found
from messages.errors import bad_request

OLLAMA = "/api/"

OWNED = ("/requests/", "/v1/responses/", "/v1/files/", "/v1/batches/")
"""Paths that end in the id of something that only one model's server has."""

NOTHING = (b"", b'""', b"[]", b"null")

MAX_SHOWN_CHARS = 200


class NamedBody(msgspec.Struct):
    """The fields of a body that are read here. Ollama's clients may send `name` for `model`."""

    model: Any = None
    name: Any = None
    keep_alive: Any = None
    prompt: Raw = Raw()
    suffix: Raw = Raw()
    messages: Raw = Raw()

    @property
    def has_prompt(self) -> bool:
        """False for bodies by which Ollama's clients load or unload a model."""
        return any(bytes(field) not in NOTHING for field in (self.prompt, self.suffix, self.messages))


_decoder = msgspec.json.Decoder(NamedBody)


def read_named(body: bytes) -> NamedBody:
    """Returns the fields; none of a body that cannot be read, which the model's server refuses with the reason."""
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return NamedBody()


def find_models(table: ModelTable, request: Request, path: str, body: NamedBody) -> list[str]:
    """Returns the models whose servers get the request: each until one does not answer 404.

    Raises `RequestError`: 404 for an unknown model, 400 if the request does not say which one it means.
    """
    is_ollama = path.startswith(OLLAMA)
    named = body.model or (is_ollama and body.name)
    wanted = (
        named
        if isinstance(named, str)
        else request.query_params.get("model") or unquote(request.headers.get("x-model", ""))
    )
    if wanted:
        return [find_model(table, wanted, is_ollama=is_ollama)]
    loaded = table.loaded() or [name for name in table.names if table.state(name).value == "loading"]
    if len(loaded) == 1 or (loaded and path.startswith(OWNED)):
        return loaded
    if len(table.names) == 1:
        return list(table.names)
    raise bad_request(
        f"the request does not name a model, as field of the body, ?model= or X-Model: {_names(table)}", "model"
    )


def find_model(table: ModelTable, wanted: str, *, is_ollama: bool = False) -> str:
    """Returns the model with this name. Raises `RequestError` (404)."""
    found = table.find(wanted) or (is_ollama and table.find(wanted.removesuffix(LATEST)))
    if not found:
        raise not_found(
            f"The model `{wanted[:MAX_SHOWN_CHARS]}` does not exist: {_names(table)}", "model_not_found", "model"
        )
    return found


def _names(table: ModelTable) -> str:
    return f"the models are {', '.join(table.names)}" if table.names else "no model is configured"
