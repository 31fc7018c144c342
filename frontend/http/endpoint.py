"""The declaration of an endpoint, from which its route and its OpenAPI description are made."""

import re
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp

from frontend.errors import OPENAI_ERRORS, ErrorForm

Access = Literal["public", "client", "overall", "operator"]
"""Who may use it: anyone; holders of an API key, if keys exist; of them, for what concerns all clients, not those whose
key has a name and is no admin's; holders of the operator's key on the same machine."""

Run = Callable[[Request], Awaitable[ASGIApp]]
"""Returns an ASGI response, or raises an exception that `frontend/http/responses.py` converts to an error."""


Name = Annotated[str, Meta(min_length=1)]


class Parameter(msgspec.Struct, frozen=True):
    """A parameter outside the body; `schema` is an annotated type."""

    place: Literal["path", "query", "header"]
    name: str
    schema: Any
    description: str


def limit_of(most: int, description: str) -> Parameter:
    """Returns the parameter `limit` of a list."""
    return Parameter("query", "limit", Annotated[int, Meta(ge=1, le=most)], description)


class Endpoint(msgspec.Struct, frozen=True):
    """`body`, `reply` and `events` are the types used for coding, so the description matches the validation.

    `errors`: statuses of errors in addition to those of every endpoint. `other_replies`: other statuses whose body is
    not an error. `events`: the types of a stream's events, if the reply may be a stream.
    """

    path: str
    run: Run
    summary: str
    reply: Any = None
    """`None` if the reply is plain text or, with `events`, always a stream."""
    method: Literal["GET", "POST", "DELETE"] | None = None
    """By default POST if it has a body, otherwise GET."""
    tag: str = "operation"
    description: str = ""
    body: type[msgspec.Struct] | None = None
    body_type: str = "application/json"
    events: tuple[type[msgspec.Struct], ...] = ()
    errors: tuple[int, ...] = ()
    error_form: ErrorForm = OPENAI_ERRORS
    second_id_header: str | None = None
    """The header in which clients of this API expect the request's id, in addition to X-Request-Id."""
    other_replies: dict[int, Any] = {}
    parameters: tuple[Parameter, ...] = ()
    examples: dict[str, Any] = {}
    """Example bodies by title."""
    access: Access = "client"
    is_polled: bool = False
    """Polled by machines: in the access log only at level debug."""
    is_early: bool = False
    """Available before every process has been ready once."""
    is_described: bool = True
    """Included in the OpenAPI description; pages for people are not."""

    @property
    def template(self) -> str:
        """The path with plain parameter names: `/v1/models/{id}`."""
        return re.sub(r":\w+}", "}", self.path)

    @property
    def verb(self) -> str:
        """The method, given or by default."""
        return self.method or ("GET" if self.body is None else "POST")

    def route(self) -> Route:
        return Route(self.path, self.run, methods=[self.verb])
