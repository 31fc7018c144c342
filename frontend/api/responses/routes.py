"""The route table for `/v1/responses`."""

from functools import partial
from typing import Annotated, Any, Literal

from msgspec import Meta

from frontend.api.answers.conversation import InputTokens
from frontend.api.parameters.sampling import MAX_INT32
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
from frontend.http.endpoint import Endpoint, Name, Parameter, limit_of

INPUT = "How far is the moon?"
TOOL: dict[str, Any] = {"type": "function", "name": "get_time", "parameters": {"type": "object", "properties": {}}}

STREAM_QUERY = (
    Parameter(
        "query",
        "stream",
        Literal["true", "false"],
        "Whether to stream a response that was created with background and stream.",
    ),
    Parameter(
        "query",
        "starting_after",
        Annotated[int, Meta(ge=-1, le=MAX_INT32)],
        "The sequence number after which the stream starts.",
    ),
)
LIST_QUERY = (
    limit_of(MAX_LISTED, "Maximum number of items to list; 20 by default."),
    Parameter("query", "order", Order, "asc: oldest first."),
    Parameter("query", "after", str, "The id of the item after which the list starts."),
)
RESPONSE_ID = Parameter("path", "id", Name, "The id of a stored response.")

_RESPONSES = partial(Endpoint, tag="OpenAI", errors=(404,), error_form=RESPONSE_ERRORS)
_STORED = partial(_RESPONSES, parameters=(RESPONSE_ID,))


def responding(api: ResponsesApi) -> list[Endpoint]:
    """Returns the endpoints of OpenAI's Responses API."""
    path = "/v1/responses/{id}"
    return [
        _RESPONSES(
            "/v1/responses",
            api.create,
            "Make a response to text or items",
            Response,
            body=ResponseBody,
            events=EVENTS,
            examples={
                "text": {"input": INPUT, "max_output_tokens": 64},
                "items, streamed": {"input": [{"role": "user", "content": INPUT}], "stream": True, "store": False},
                "a tool": {"input": INPUT, "tools": [TOOL], "tool_choice": "none"},
            },
        ),
        _RESPONSES(
            "/v1/responses/input_tokens",
            api.count,
            "Number of tokens in the prompt of a response",
            InputTokens,
            body=ResponseBody,
            examples={"text": {"input": INPUT}},
        ),
        _RESPONSES(
            path,
            api.retrieve,
            "A stored response",
            Response,
            events=EVENTS,
            errors=(404, 409),
            parameters=(RESPONSE_ID, *STREAM_QUERY),
        ),
        _STORED(path, api.delete, "Delete a stored response", DeletedResponse, method="DELETE"),
        _STORED(f"{path}/cancel", api.cancel, "Cancel a response in the background", Response, method="POST"),
        _RESPONSES(
            f"{path}/input_items",
            api.list_input,
            "The input items of a response",
            InputItems,
            parameters=(RESPONSE_ID, *LIST_QUERY),
        ),
    ]
