"""When the access log line reports that a client has left."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from frontend.requests.generation import Generation
from frontend.requests.trace import RequestTrace
from messages.errors import ErrorInfo
from messages.ring.replies import UserReply

WHOLE, FAILED = UserReply(1, 0, "stop"), UserReply(2, 0, "error", error=ErrorInfo(500, "it broke"))


@pytest.mark.parametrize(
    ("status", "finals", "has_left"),
    [
        (0, [], True),
        (0, [None], True),
        (200, [], False),
        (200, [WHOLE, WHOLE], False),
        (200, [WHOLE, None], True),
        (200, [FAILED, None], False),
        (500, [FAILED, None], False),
        (503, [], False),
    ],
)
def test_a_client_has_left_where_its_response_is_not_whole_and_nothing_failed(
    status: int, finals: list[UserReply | None], has_left: bool
):
    trace = RequestTrace({"method": "POST", "path": "/generate", "headers": []})
    trace.status = status
    trace.generations = [cast("Generation", cast("Any", SimpleNamespace(final=final))) for final in finals]
    assert trace.has_client_left == has_left
