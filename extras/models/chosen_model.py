"""Which model a request means: by its body, its query, a header, or because there is only one."""

from math import inf
from urllib.parse import unquote

import msgspec
from msgspec import Raw
from starlette.requests import Request

from extras.models.config import LONGEST_S, parse_duration
from extras.models.model_table import ModelTable
from extras.ollama.endpoints import LATEST
from frontend.errors import not_found
from frontend.http.field_names import shown
from frontend.requests.trace import trace_of
from messages.errors import bad_request, cut

OLLAMA = "/api/"

OWNED = ("/requests/", "/v1/responses/", "/v1/files/", "/v1/batches/")
"""Paths that end in the id of something that only one model's server has."""

NOTHING = (b"", b'""', b"[]", b"null")

MAX_NAME_BYTES = 4096
MAX_KEEP_ALIVE_BYTES = 256


class NamedBody(msgspec.Struct):
    """The fields of a body that are read here, undecoded: a client may write anything of any size into them."""

    model: Raw = Raw()
    name: Raw = Raw()
    """Ollama's clients may send it for `model`, or both."""
    keep_alive: Raw = Raw()
    prompt: Raw = Raw()
    suffix: Raw = Raw()
    messages: Raw = Raw()
    images: Raw = Raw()

    @property
    def has_prompt(self) -> bool:
        """False for bodies by which Ollama's clients load or unload a model."""
        fields = (self.prompt, self.suffix, self.messages, self.images)
        return any(bytes(memoryview(field)[:5]) not in NOTHING for field in fields)

    def named(self, *, is_ollama: bool) -> str:
        """Returns the model's name, "" without one. Raises `RequestError` (400) for two different ones."""
        names = {text for field in (self.model, self.name)[: 1 + is_ollama] if (text := _text(field))}
        if len(names) > 1:
            raise bad_request("model and name are two different models, send one of them", "model")
        return "".join(names)

    def keep_alive_s(self) -> float | None:
        """Returns how long the model stays loaded, `inf` for ever, `None` by default. Raises `RequestError` (400)."""
        try:
            value = _decode_keep_alive(memoryview(self.keep_alive)[: MAX_KEEP_ALIVE_BYTES + 1] or b"null")
            seconds = parse_duration(value) if isinstance(value, str) else value
        except msgspec.DecodeError:
            text = f"{shown(self.keep_alive)} is not a time: expected seconds, or a text such as 90s, 5m, 1h30m or -1"
            raise bad_request(f"keep_alive: {text}", "keep_alive") from None
        except ValueError as error:
            raise bad_request(f"keep_alive: {error}", "keep_alive") from None
        return inf if seconds is not None and not 0 <= seconds <= LONGEST_S else seconds


_decoder = msgspec.json.Decoder(NamedBody)
_decode_keep_alive = msgspec.json.Decoder(float | str | None).decode


def _text(field: Raw) -> str:
    """Returns the text of a field, cut if it is longer than a name may be; "" if it is none."""
    if bytes(memoryview(field)[:1]) != b'"':
        return ""
    try:
        return msgspec.json.decode(field, type=str) if len(memoryview(field)) <= MAX_NAME_BYTES else shown(field)
    except msgspec.DecodeError:
        return ""


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
    requested = (
        body.named(is_ollama=is_ollama)
        or request.query_params.get("model")
        or unquote(request.headers.get("x-model", ""))
    )
    if requested:
        return [find_model(table, requested, request, is_ollama=is_ollama)]
    names = trace_of(request.scope).client.usable(table.names)
    loaded = [name for name in names if name in table.loaded()]
    loaded = loaded or [name for name in names if table.state(name).value == "loading"]
    if len(loaded) == 1 or (loaded and path.startswith(OWNED)):
        return loaded
    if len(names) == 1:
        return names
    raise bad_request(
        f"the request does not name a model, as field of the body, ?model= or X-Model: {_names(table, request)}",
        "model",
    )


def find_model(table: ModelTable, requested: str, request: Request, *, is_ollama: bool = False) -> str:
    """Returns the model with this name. Raises `RequestError` (404), also for one that is not for the request's key."""
    found = table.find(requested) or (is_ollama and table.find(requested.removesuffix(LATEST)))
    if not found or not trace_of(request.scope).client.may_use((found,)):
        text = f"The model `{cut(requested)}` does not exist: {_names(table, request)}"
        raise not_found(text, "model_not_found", "model")
    return found


def _names(table: ModelTable, request: Request) -> str:
    names = trace_of(request.scope).client.usable(table.names)
    return f"the models are {', '.join(names)}" if names else "no model is configured"
