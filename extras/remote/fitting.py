"""Checks that a frame for the detokenizer is consistent, before one from an engine on another machine is passed on.

Processes of one machine belong to one installation and accept no connections from others; they are not checked.
"""

import msgspec

from messages.columns import num_int32, unpack_int32
from messages.frame_files import DECODERS
from messages.frames import HEADER
from messages.ring.axes import columns_of
from messages.ring.replies import DetokenizeMsg, OpenStream, PooledReply, PromptLogprobs, ToDetokenizer
from messages.ring.steps import LogprobColumns
from messages.ring.uids import block_of


class MisfitError(Exception):
    """The frame must not be passed on; the text is the reason."""


def open_frame(frame: bytes) -> ToDetokenizer:
    """Returns the message in the frame. Raises `MisfitError`."""
    if len(frame) < HEADER.size:
        raise MisfitError(f"a frame of {len(frame)} bytes has no number")
    try:
        return DECODERS["detokenizer"].decode(memoryview(frame)[HEADER.size :])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MisfitError(f"a frame does not decode: {error}") from None


def check_fit(message: ToDetokenizer, engine: int) -> int:
    """Returns the largest block of uids that `message` refers to, 0 for none.

    Raises `MisfitError` if it is not from engine `engine`, if its columns disagree, or for values that no request has.
    """
    if getattr(message, "engine", engine) != engine:
        raise MisfitError(f"{type(message).__name__}: it names engine {message.engine}")  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    uids = [getattr(message, "uid", 0)]
    match message:
        case DetokenizeMsg():
            _check_step(message)
            uids += memoryview(message.uids).cast("q")
            uids += [row.uid for row in (*message.finished, *message.prefilled)]
        case OpenStream():
            _check(message, len(message.prompt_ids) % 4 == len(message.output_ids) % 4 == 0, "its token ids are torn")
            _check(message, all(message.stop), "a stop string is empty")
        case PromptLogprobs():
            _check_logprobs(message, message.logprobs)
        case PooledReply():
            is_whole = message.num_rows > 0 and len(message.values) % (4 * message.num_rows) == 0
            _check(message, is_whole, f"{len(message.values)} bytes are not {message.num_rows} vectors")
        case _:
            pass
    _check(message, min(uids) >= 0, "a uid is negative")
    return block_of(max(uids)) if max(uids) else 0


def _check_step(step: DetokenizeMsg) -> None:
    int32s = (step.attempts, step.token_ids, step.num_tokens, step.logprob_entries)
    is_whole = not (len(step.uids) % 8 or any(len(column) % 4 for column in int32s))
    _check(step, is_whole, "a column is torn")
    num_rows, num_tokens = len(step.uids) // 8, num_int32(step.token_ids)
    _check(step, num_int32(step.attempts) == num_rows, f"{num_rows} uids and {num_int32(step.attempts)} attempts")
    counts = unpack_int32(step.num_tokens) if step.num_tokens else [1] * num_rows
    _check(step, len(counts) == num_rows and min(counts, default=1) >= 1, f"{num_rows} uids with {len(counts)} counts")
    _check(step, sum(counts) == num_tokens, f"{num_tokens} tokens for {sum(counts)} places")
    usages = [row.usage for row in (*step.finished, *step.prefilled)]
    _check(step, all(min(msgspec.structs.astuple(usage)) >= 0 for usage in usages), "a number of tokens is negative")
    if step.logprobs is not None:
        _check_logprobs(step, step.logprobs)
        num_entries = num_int32(step.logprob_entries)
        _check(step, num_entries == num_int32(step.logprobs.token_ids), f"{num_entries} places of other logprobs")


def _check_logprobs(message: ToDetokenizer, logprobs: LogprobColumns) -> None:
    _check(message, logprobs.num_top >= 0, "a number of alternatives is negative")
    num = num_int32(logprobs.token_ids)
    for name, column in columns_of(LogprobColumns).items():
        num_bytes = column.itemsize * num * (logprobs.num_top if column.axis.width else 1)
        found = len(getattr(logprobs, name))
        _check(message, found == num_bytes, f"{name} of {found} bytes for {num} tokens with {logprobs.num_top} each")


def _check(message: ToDetokenizer, is_right: bool, text: str) -> None:
    if not is_right:
        raise MisfitError(f"{type(message).__name__}: {text}")
