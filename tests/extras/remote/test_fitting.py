"""A frame of an engine on another machine is forwarded only if it is consistent."""

from typing import Any, cast

import msgspec
import pytest

from detokenizer_proc.detokenizer import Detokenizer
from extras.remote.fitting import MisfitError, check_fit, open_frame
from messages.columns import pack_float32, pack_int32, pack_int64
from messages.errors import ErrorInfo
from messages.frames import HEADER
from messages.ring.replies import (
    DetokenizeMsg,
    FinishedRow,
    OpenStream,
    PooledReply,
    PrefilledRow,
    PromptLogprobs,
    ToDetokenizer,
    Usage,
)
from messages.ring.requests import FramesLost, Stamps
from messages.ring.steps import LogprobColumns
from messages.ring.uids import UIDS_PER_BLOCK

ENGINE = 2
LOGPROBS = LogprobColumns(pack_int32([5, 6]), pack_float32([-1, -2]), 1, pack_int32([7, 8]), pack_float32([-3, -4]))
STEP = DetokenizeMsg(
    1,
    pack_int64([1, UIDS_PER_BLOCK * 3]),
    pack_int32([0, 0]),
    pack_int32([5, 6, 7]),
    finished=(FinishedRow(2, 0, "stop", Usage(1, 0, 1), Stamps()),),
    logprob_entries=pack_int32([0, 2]),
    logprobs=LOGPROBS,
    prefilled=(PrefilledRow(1, 0, Usage(1)),),
    num_tokens=pack_int32([2, 1]),
    engine=ENGINE,
)
POOLED = PooledReply(1, 0, pack_float32([1, 2, 3, 4]), 2)
OPENING = OpenStream(1, 0, stop=("a",), prompt_ids=pack_int32([1, 2]), engine=ENGINE)


def changed(message: Any, **changes: Any) -> Any:
    return msgspec.structs.replace(message, **changes)


@pytest.mark.parametrize("message", [STEP, OPENING, PromptLogprobs(1, 0, LOGPROBS), POOLED, FramesLost("d", 1, 2, 3)])
def test_what_an_engine_sends_fits(message: ToDetokenizer):
    frame = HEADER.pack(7, 1) + msgspec.msgpack.encode(message)
    assert open_frame(frame) == message
    assert check_fit(message, ENGINE) == (3 if message is STEP else 0 if isinstance(message, FramesLost) else 1)


@pytest.mark.parametrize(
    "message",
    [
        changed(POOLED, num_rows=3),
        changed(POOLED, num_rows=0),
        changed(POOLED, values=POOLED.values[:-1]),
        changed(STEP, uids=STEP.uids[:8]),
        changed(STEP, uids=STEP.uids[:-1]),
        changed(STEP, attempts=pack_int32([0])),
        changed(STEP, attempts=STEP.attempts[:-1]),
        changed(STEP, token_ids=pack_int32([5, 6])),
        changed(STEP, token_ids=STEP.token_ids + b"x"),
        changed(STEP, num_tokens=b""),
        changed(STEP, num_tokens=pack_int32([3])),
        changed(STEP, num_tokens=pack_int32([4, -1])),
        changed(STEP, uids=pack_int64([1, -1])),
        changed(STEP, engine=3),
        changed(STEP, logprob_entries=pack_int32([0])),
        changed(STEP, logprob_entries=b"xyz"),
        changed(STEP, logprobs=changed(LOGPROBS, num_top=2)),
        changed(STEP, logprobs=changed(LOGPROBS, num_top=-1)),
        changed(STEP, logprobs=changed(LOGPROBS, logprobs=pack_float32([-1]))),
        changed(STEP, finished=(FinishedRow(2, 0, "stop", Usage(1, 0, -1), Stamps(), error=ErrorInfo(500, "")),)),
        changed(OPENING, prompt_ids=b"x"),
        changed(OPENING, output_ids=b"xyz"),
        changed(OPENING, stop=("a", "")),
        changed(OPENING, uid=-1),
        changed(OPENING, engine=1),
        PromptLogprobs(1, 0, changed(LOGPROBS, top_ids=b"")),
    ],
)
def test_what_does_not_fit_is_refused(message: ToDetokenizer):
    with pytest.raises(MisfitError, match=type(message).__name__):
        check_fit(message, ENGINE)


@pytest.mark.parametrize("frame", [b"", b"x" * (HEADER.size - 1), HEADER.pack(7, 1) + b"\xc1", HEADER.pack(7, 1)])
def test_what_is_no_message_is_refused(frame: bytes):
    with pytest.raises(MisfitError, match="frame"):
        open_frame(frame)


def test_the_detokenizer_would_end_by_it():
    detokenizer = Detokenizer(cast("Any", None))
    with pytest.raises(ValueError, match="zip"):
        detokenizer.handle(changed(STEP, attempts=b"", logprobs=None))
