"""The route table below `/v1/responses`."""

from typing import Annotated, Any, Literal

from msgspec import Meta

from frontend.api.responses.body import ResponseBody
from frontend.api.responses.endpoints import (
    MAX_LISTED,
    RESPONSE_ERRORS,
    DeletedResponse,
    InputItems,
    Order,
    ResponsesApi,
)
from frontend.api.responses.events import EVENTS
from frontend.api.responses.reply import Response
from frontend.api.sampling import MAX_INT32
from frontend.http.endpoint import Endpoint, Parameter

INPUT = "How far is the moon?"
TOOL: dict[str, Any] = {"type": "function", "name": "get_time", "parameters": {"type": "object", "properties": {}}}

RESPONSE_ID = Parameter(
    name="id", place="path", schema=Annotated[str, Meta(min_length=1)], description="The id of a stored response."
)
STREAM_QUERY = (
    Parameter(
        name="stream",
        place="query",
        schema=Literal["true", "false"],
        description="Whether to stream a response that was made with background and stream.",
    ),
    Parameter(
        name="starting_after",
        place="query",
        schema=Annotated[int, Meta(ge=-1, le=MAX_INT32)],
        description="The sequence number of the last event that is not wanted.",
    ),
)
LIST_QUERY = (
    Parameter(
        name="limit",
        place="query",
        schema=Annotated[int, Meta(ge=1, le=MAX_LISTED)],
        description="The most items to list; 20 if it is not given.",
    ),
    Parameter(name="order", place="query", schema=Order, description="asc: the oldest first."),
    Parameter(name="after", place="query", schema=str, description="The id of the item after which to begin."),
)


def responding(api: ResponsesApi) -> list[Endpoint]:
    """Returns the endpoints of responses."""
    return [
        Endpoint(
            method="POST",
            path="/v1/responses",
            run=api.create,
            tag="OpenAI",
            summary="Make a response to text or items",
            body=ResponseBody,
            reply=Response,
            events=EVENTS,
            errors=(404,),
            error_form=RESPONSE_ERRORS,
            examples={
                "text": {"input": INPUT, "max_output_tokens": 64},
                "items, streamed": {"input": [{"role": "user", "content": INPUT}], "stream": True, "store": False},
                "a tool": {"input": INPUT, "tools": [TOOL], "tool_choice": "none"},
            },
        ),
        _stored("GET", "/v1/responses/{id}", api.retrieve, "A stored response", Response, STREAM_QUERY),
        _stored("DELETE", "/v1/responses/{id}", api.delete, "Delete a stored response", DeletedResponse),
        _stored("POST", "/v1/responses/{id}/cancel", api.cancel, "End a response in the background", Response),
        _stored("GET", "/v1/responses/{id}/input_items", api.list_input, "What it answers", InputItems, LIST_QUERY),
    ]


def _stored(
    method: Literal["GET", "POST", "DELETE"],
    path: str,
    run: Any,
    summary: str,
    reply: Any,
    query: tuple[Parameter, ...] = (),
) -> Endpoint:
    is_streamed = query is STREAM_QUERY
    return Endpoint(
        method=method,
        path=path,
        run=run,
        tag="OpenAI",
        summary=summary,
        reply=reply,
        events=EVENTS if is_streamed else (),
        errors=(404, 409) if is_streamed else (404,),
        error_form=RESPONSE_ERRORS,
        parameters=(RESPONSE_ID, *query),
    )
