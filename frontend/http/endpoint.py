"""What an endpoint declares of itself, from which come its route and its part of the OpenAPI description."""

import re
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp

from frontend.errors import OPENAI_ERRORS, ErrorForm

Access = Literal["public", "client", "operator"]
"""Who may ask: anybody; who has an API key, where there are any; who has the operator's key, on the same machine."""

Run = Callable[[Request], Awaitable[ASGIApp]]
"""Returns an ASGI response or raises what `frontend/http/responses.py` makes an error of."""


Name = Annotated[str, Meta(min_length=1)]


class Parameter(msgspec.Struct, frozen=True):
    """A parameter outside of the body; `schema` is an annotated type."""

    place: Literal["path", "query", "header"]
    name: str
    schema: Any
    description: str


def limit_of(most: int, description: str) -> Parameter:
    """Returns the parameter `limit` of a list."""
    return Parameter("query", "limit", Annotated[int, Meta(ge=1, le=most)], description)


class Endpoint(msgspec.Struct, frozen=True):
    """`body`, `reply` and `event` are the types that decode and encode: what is described is what is checked.

    `errors` are the statuses of refusals besides those that every endpoint can have; `other_replies` are other
    statuses whose body is no error. `events` are what a stream's events hold, where the reply may be a stream.
    """

    path: str
    run: Run
    summary: str
    reply: Any = None
    """`None` for a reply of plain text or, with `events`, one that is always a stream."""
    method: Literal["GET", "POST", "DELETE"] = "GET"
    tag: str = "operation"
    description: str = ""
    body: type[msgspec.Struct] | None = None
    body_type: str = "application/json"
    events: tuple[type[msgspec.Struct], ...] = ()
    errors: tuple[int, ...] = ()
    error_form: ErrorForm = OPENAI_ERRORS
    second_id_header: str | None = None
    """The header in which clients of this API look for the request's id, beside X-Request-Id."""
    other_replies: dict[int, Any] = {}
    parameters: tuple[Parameter, ...] = ()
    examples: dict[str, Any] = {}
    """Bodies by what they show."""
    access: Access = "client"
    is_polled: bool = False
    """Machines ask all the time: in the access log only at level debug."""
    is_early: bool = False
    """It answers also before every process has been ready once."""
    is_described: bool = True
    """It is in the description: not so what is for people alone."""

    @property
    def template(self) -> str:
        """The path with the names of its parameters alone, as others know it: `/v1/models/{id}`."""
        return re.sub(r":\w+}", "}", self.path)

    def route(self) -> Route:
        return Route(self.path, self.run, methods=[self.method])
