"""Positions of rotation and last keys are those of every token worked out one by one."""

import random
from array import array
from collections.abc import Sequence

from messages.columns import INT32, unpack_int32
from messages.ring.spans import DIGEST_BYTES, PromptSpan
from scheduler_proc.deciding.pages.running_request import Chunk, Req
from scheduler_proc.deciding.pages.span_columns import SpanColumns, position_columns
from scheduler_proc.deciding.rows.decode_rows import DecodeRows
from scheduler_proc.deciding.sampling.output_counts import OutputCounts
from tests.scheduler_proc.clients import Bench, user_msg

NAMES = ("rope_positions", "line_positions", "column_positions")
DIGEST = bytes(DIGEST_BYTES)


def axes_of(spans: Sequence[PromptSpan], num_tokens: int) -> list[tuple[int, int, int]]:
    """Returns the positions of a request's tokens in time, lines and columns."""
    starts, found, position = {span.start: span for span in spans if span.num_lines}, list[tuple[int, int, int]](), 0
    while len(found) < num_tokens:
        span = starts.get(len(found))
        if span is None:
            found.append((position, position, position))
            position += 1
        else:
            places = (divmod(index, span.num_columns) for index in range(span.length))
            found += [(position, position + line, position + column) for line, column in places]
            position += max(span.num_lines, span.num_columns)
    return found[:num_tokens]


def random_spans(chance: random.Random) -> list[PromptSpan]:
    spans, end = list[PromptSpan](), 0
    for _ in range(chance.randint(0, 4)):
        start = end + chance.choice((0, 0, 1, 3))
        lines, columns = chance.randint(1, 5), chance.randint(1, 5)
        grid = (lines, columns) if chance.random() < 0.8 else (0, 0)
        spans.append(PromptSpan(start, lines * columns, DIGEST, num_lines=grid[0], num_columns=grid[1]))
        end = start + lines * columns
    return spans


def make_req(num_tokens: int, spans: Sequence[PromptSpan]) -> Req:
    """Returns a running request, whose spans the scheduler has not seen."""
    bench = Bench()
    bench.send(user_msg(1, [7] * 5, 3))
    bench.step()
    req = bench.scheduler._stages.running[1].twin(array(INT32, [7]) * num_tokens)
    req.pending.spans = tuple(spans)
    return req


def test_positions_of_random_requests() -> None:
    chance = random.Random(4)
    for _ in range(200):
        spans = random_spans(chance)
        num_tokens = max([span.end for span in spans], default=0) + chance.randint(2, 6)
        req, expected = make_req(num_tokens, spans), axes_of(spans, num_tokens + 40)
        rows, empty = DecodeRows(4), DecodeRows(4)
        rows.reqs, rows.context_lens = [req], array(INT32, [num_tokens - 1])
        for distance in (0, 1):
            start = chance.randint(distance, num_tokens - 1)
            end = chance.randint(start + 1, num_tokens)
            chunk = Chunk(req, start, end, OutputCounts(), array(INT32, [1, 2]))
            found = position_columns(empty, [chunk], distance)
            assert found or not any(span.num_lines for span in spans)
            if found:
                own = expected[start - distance : end + 2 - distance]
                columns = [list(unpack_int32(found.get(name, found["rope_positions"]))) for name in NAMES]
                assert columns == [list(axis) for axis in zip(*own, strict=True)]
            if decoding := position_columns(rows, [], distance):
                assert decoding.keys() == {"rope_positions"}
                (position,) = unpack_int32(decoding["rope_positions"])
                assert position == expected[rows.context_lens[0] - distance][0]


def test_last_keys_are_in_steps_with_tokens_of_such_spans_alone() -> None:
    spans = [PromptSpan(3, 5, DIGEST, "image", is_two_way=True), PromptSpan(9, 2, DIGEST, "image")]
    req, resource, rows = make_req(14, spans), SpanColumns(), DecodeRows(4)
    resource.prepare(req.pending)

    def last_keys(start: int, end: int) -> list[int] | None:
        found = resource.columns(rows, [Chunk(req, start, end, OutputCounts())])
        return list(unpack_int32(found["last_keys"])) if found else None

    assert last_keys(0, 12) == [0, 1, 2, 7, 7, 7, 7, 7, 8, 9, 10, 11]
    assert last_keys(5, 10) == [7, 7, 7, 8, 9], "behind a prefix that ends within the span"
    assert last_keys(8, 12) is last_keys(0, 3) is None
    resource.on_finished(1)
    assert last_keys(0, 12) is None
