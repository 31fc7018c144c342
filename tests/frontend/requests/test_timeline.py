"""The timeline of one request: marks in any order, and contiguous stages."""

import random
from itertools import pairwise

import msgspec
import pytest

from frontend.requests.timeline import MAX_CHUNKS, MAX_MARKS, ChunkSpan, Timeline
from messages.ring.replies import Usage, UserReply
from messages.ring.requests import Stamps

STAMPS = Stamps(
    received_ns=100,
    tokenize_begun_ns=120,
    tokenized_ns=130,
    queued_ns=140,
    first_scheduled_ns=150,
    first_token_ns=160,
    finished_ns=170,
    detokenized_ns=180,
)
WHOLE = ["accept", "tokenizer_queue", "tokenize", "scheduler_inbox", "queue", "prefill", "decode", "detokenize"]
WHOLE += ["deliver", "send"]


def opened() -> Timeline:
    timeline = Timeline(uid=1, request_id="r", index=0, received_ns=100, priority=0)
    timeline.send(110)
    return timeline


def end(timeline: Timeline, stamps: Stamps, now_ns: int) -> None:
    timeline.finish(UserReply(1, timeline.attempt, "stop", usage=Usage(5, 2, 1), stamps=stamps), now_ns)


def stages(timeline: Timeline) -> list[str]:
    return [span.stage for span in timeline.spans(10_000)]


def check_sound(timeline: Timeline, end_ns: int) -> None:
    """No gap, no overlap, no step back, from the arrival to the end."""
    spans = timeline.spans(end_ns)
    assert spans[0].begin_ns == timeline.received_ns
    assert spans[-1].end_ns == end_ns
    assert all(before.end_ns == after.begin_ns for before, after in pairwise(spans))
    assert all(span.begin_ns <= span.end_ns for span in spans)
    assert sum(span.end_ns - span.begin_ns for span in spans) == end_ns - timeline.received_ns


def test_what_was_not_received_comes_with_the_stamps_of_the_end():
    timeline = opened()
    end(timeline, STAMPS, 190)
    assert stages(timeline) == WHOLE
    assert [span.begin_ns for span in timeline.spans(200)] == list(range(100, 200, 10))
    check_sound(timeline, 200)
    assert (timeline.prompt_tokens, timeline.cached_tokens) == (5, 2)


def test_what_was_received_is_not_reported_twice_and_in_any_order_is_the_same():
    reported = [(120, "tokenize"), (130, "scheduler_inbox"), (140, "queue"), (150, "prefill"), (160, "decode")]
    for seed in range(20):
        timeline = opened()
        random.Random(seed).shuffle(reported)
        for begin_ns, stage in reported:
            timeline.mark_once(begin_ns, stage)
        end(timeline, STAMPS, 190)
        assert stages(timeline) == WHOLE
        check_sound(timeline, 250)


def test_a_refusal_by_the_tokenizer_comes_straight_back():
    timeline = opened()
    end(timeline, Stamps(received_ns=100, tokenize_begun_ns=120, tokenized_ns=130), 140)
    assert stages(timeline) == ["accept", "tokenizer_queue", "tokenize", "deliver", "send"]
    check_sound(timeline, 150)


def test_a_lost_attempt_ends_at_its_last_token_and_the_next_has_its_own_stages():
    timeline = opened()
    timeline.mark_once(140, "queue")
    timeline.record_chunk(ChunkSpan(150, 0, 9), 140)
    timeline.begin_decoding(160, Usage(9, 0, 1))
    timeline.interrupt(last_token_ns=300)
    timeline.interrupt(last_token_ns=310)
    assert timeline.stage == "restart"
    assert timeline.stage_begin_ns == 300
    timeline.send(500)
    end(timeline, Stamps(100, 520, 530, 540, 550, 560, 570, 510), 580)
    check_sound(timeline, 600)
    spans = timeline.spans(600)
    first = ["accept", "tokenizer_queue", "queue", "prefill", "decode"]
    assert [span.stage for span in spans if span.attempt == 0] == first
    assert [span.stage for span in spans if span.attempt == 1] == ["restart", *WHOLE[1:]]
    assert timeline.attempt == 1


def test_a_preempted_request_waits_and_computes_its_prompt_again():
    timeline = opened()
    timeline.record_chunk(ChunkSpan(150, 0, 9), 140)
    timeline.begin_decoding(160, Usage(9, 0, 1))
    timeline.mark(200, "preempted")
    timeline.record_chunk(ChunkSpan(250, 0, 12), 140)
    timeline.begin_decoding(260, Usage(9, 0, 1))
    end(timeline, msgspec.structs.replace(STAMPS, finished_ns=300, detokenized_ns=310), 400)
    assert stages(timeline) == [*WHOLE[:7], "preempted", "prefill", "decode", *WHOLE[7:]]
    check_sound(timeline, 450)


@pytest.mark.parametrize("num_chunks", [MAX_CHUNKS, MAX_CHUNKS + 1, 10 * MAX_CHUNKS + 3])
def test_chunks_are_bounded_and_still_cover_the_prompt(num_chunks: int):
    timeline = opened()
    for number in range(num_chunks):
        timeline.record_chunk(ChunkSpan(150 + number, 8 * number, 8 * number + 8), 140)
    assert len(timeline.chunks) <= MAX_CHUNKS
    assert timeline.chunks[0].start == 0
    assert timeline.chunks[-1].end == 8 * num_chunks
    assert all(a.end == b.start for a, b in pairwise(timeline.chunks))


def test_a_chunk_that_is_planned_again_is_one_chunk():
    timeline = opened()
    timeline.record_chunk(ChunkSpan(150, 0, 8), 140)
    timeline.record_chunk(ChunkSpan(155, 0, 4), 140)
    timeline.record_chunk(ChunkSpan(160, 4, 8), 140)
    assert timeline.chunks == [ChunkSpan(155, 0, 4), ChunkSpan(160, 4, 8)]


def test_a_request_that_is_preempted_for_ever_has_a_bounded_timeline():
    timeline = opened()
    for number in range(MAX_MARKS):
        timeline.mark(1000 + 10 * number, "preempted")
        timeline.record_chunk(ChunkSpan(1005 + 10 * number, 0, 8), 140)
    for _ in range(MAX_MARKS):
        timeline.interrupt(10**6)
        timeline.send(10**6)
    end(timeline, Stamps(finished_ns=2 * 10**6, detokenized_ns=2 * 10**6 + 1), 3 * 10**6)
    assert len(timeline.spans(4 * 10**6)) <= MAX_MARKS + 3
    check_sound(timeline, 4 * 10**6)
