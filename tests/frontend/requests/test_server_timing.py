"""The `Server-Timing` header of whole replies."""

import re
import time

import msgspec
import pytest

from tests.frontend.frontend_run import FrontendRun, final

ENTRY = re.compile(r"([a-z_]+);dur=(\d+\.\d{3})")


def entries_of(value: str) -> dict[str, float]:
    found = [ENTRY.fullmatch(part) for part in value.split(", ")]
    return {match[1]: float(match[2]) for match in found if match is not None}


@pytest.mark.parametrize("path", ["/generate", "/v1/completions"])
def test_a_whole_reply_reports_where_its_time_went(server: FrontendRun, path: str):
    begin_s = time.monotonic()
    with server.call({"stream": False}, path=path) as call:
        message = server.take_request()
        now_ns = time.monotonic_ns()
        stamps = msgspec.structs.replace(message.stamps, finished_ns=now_ns - 2000, detokenized_ns=now_ns - 1000)
        server.send(final(message, "ok", (1,), stamps=stamps))
        header = call.response.headers["Server-Timing"]
        call.json()
    entries = entries_of(header)
    assert list(entries) == ["accept", "tokenizer_queue", "detokenize", "deliver", "send", "total"]
    total_ms = entries.pop("total")
    assert abs(sum(entries.values()) - total_ms) < 1
    assert 0 < total_ms <= 1000 * (time.monotonic() - begin_s)


def test_of_several_choices_it_is_that_of_the_last(server: FrontendRun):
    with server.call({"n": 2}, path="/v1/completions") as call:
        first, second = server.take_request(), server.take_request()
        server.send(
            final(first, "a", (1,), stamps=msgspec.structs.replace(first.stamps, tokenized_ns=time.monotonic_ns()))
        )
        server.send(final(second, "b", (2,)))
        assert list(entries_of(call.response.headers["Server-Timing"])) == [
            "accept",
            "tokenizer_queue",
            "send",
            "total",
        ]
        call.json()


def test_a_stream_has_none(server: FrontendRun):
    with server.call() as call:
        server.send(final(server.take_request(), "ok", (1,)))
        assert "Server-Timing" not in call.response.headers
        call.events()
