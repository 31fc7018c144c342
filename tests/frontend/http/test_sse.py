import json

import pytest

from frontend.api.generate.generate_events import TokensEvent, tokens_frame
from frontend.http import sse
from messages.errors import ErrorInfo


@pytest.mark.parametrize("text", ["", "plain", 'quote " and \\ and \n newline \r', "über 😀 \u2028", "\x00"])
def test_any_text_stays_in_one_frame(text: str):
    frame = tokens_frame(2**32 + 1, text, [5, 6])
    assert frame.startswith(b"data: ")
    assert frame.endswith(b"\n\n")
    assert frame.count(b"\n") == 2
    assert b"\r" not in frame
    assert json.loads(frame[6:]) == {"uid": 2**32 + 1, "text": text, "token_ids": [5, 6], "finish_reason": None}


def test_an_error_is_an_event():
    frame = sse.error_frame(ErrorInfo(503, "ending", "service_unavailable", code="shutting_down"))
    error = {"message": "ending", "type": "service_unavailable", "param": None, "code": "shutting_down"}
    assert json.loads(frame[6:]) == {"error": error}


@pytest.mark.parametrize("text", ["plain", 'a "quote"\n', "über 😀", "a\u0085b\u2028c\u2029d", ""])
def test_a_form_writes_what_a_frame_writes_and_no_client_sees_a_line_end(text: str):
    form = sse.FrameForm(TokensEvent(7, sse.FrameForm.MARK, [1]))
    frame = form.frame(text)
    assert frame == sse.frame(TokensEvent(7, text, [1]))
    assert len(frame.decode().splitlines()) == 2
    assert json.loads(frame[6:])["text"] == text
