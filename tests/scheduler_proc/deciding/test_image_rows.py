"""Requests with images: what is asked for and in which order, what stays, and what encoders that die cost."""

import pytest
from msgspec.structs import replace

from messages.columns import pack_int32, unpack_int32, unpack_int64
from messages.errors import RequestError, bad_request
from messages.ring.encodings import EncoderStarted
from messages.ring.images import ImageInput
from messages.ring.requests import AbortMsg, FramesLost, UserMsg
from messages.ring.steps import Batch
from scheduler_proc.deciding.image_asks import MAX_DEATHS
from scheduler_proc.deciding.placed_spans import PlacedSpans
from tests.scheduler_proc.clients import EOS, VOCAB_SIZE, Bench, user_msg
from tests.scheduler_proc.simulated_runner import SimulatedPages, expected_output
from tests.scheduler_proc.simulated_spans import SimulatedSpanRows, image_of, image_span, row_value
from tests.scheduler_proc.soak import MAX_MODEL_LEN, Soak

PROMPT = [(7 * place) % VOCAB_SIZE for place in range(30)]
MARK, PLACEHOLDER = 1, 2


def ask(uid: int, *contents: int, length: int = 6, attempt: int = 0, **fields: object) -> UserMsg:
    """Returns a request with an image of `length` tokens for each of `contents`."""
    images = tuple(map(image_of, contents))
    spans = tuple(image_span(2 + 9 * at, length, image, at, **fields) for at, image in enumerate(images))
    return replace(user_msg(uid, PROMPT, attempt=attempt), spans=spans, images=images)


def check(bench: Bench, *messages: UserMsg) -> None:
    for message in messages:
        params = message.sampling_params
        expected = expected_output(PROMPT, params, VOCAB_SIZE, MAX_MODEL_LEN, (EOS,), message.spans)
        assert bench.output(message.uid, message.attempt) == expected


def asked(bench: Bench) -> list[ImageInput]:
    return [message.image for _, message in bench.encoders.open]


def test_images_are_asked_for_in_the_order_of_the_queue_and_others_pass():
    bench, text = Bench(), user_msg(9, PROMPT)
    messages = [ask(1, 1, 2), ask(2, 3), ask(3, 1)]
    bench.send(*messages, text)
    bench.step()
    assert asked(bench) == [image_of(1), image_of(2)], "at most two at once"
    assert bench.gauge("images_waiting") == 3
    bench.step()
    bench.send(bench.encoders.answer())
    bench.step()
    assert asked(bench) == [image_of(2), image_of(3)]
    assert bench.gauge("images_waiting") == 2, "the third one has its image"
    bench.run()
    check(bench, *messages)
    assert bench.output(9)
    assert (bench.gauge("image_hits"), bench.gauge("image_misses"), bench.gauge("images_encoded")) == (0, 4, 3)
    again = ask(4, 2)
    bench.send(again)
    bench.run()
    check(bench, again)
    assert (bench.gauge("image_hits"), bench.gauge("images_encoded")) == (1, 3)


def test_a_span_has_marks_between_its_rows():
    bench = Bench(max_num_batched_tokens=5)
    ids = [MARK, PLACEHOLDER, PLACEHOLDER, MARK, PLACEHOLDER, PLACEHOLDER, MARK]
    prompt = [*range(10, 13), *ids, *range(20, 30)]
    span = image_span(3, len(ids), image_of(1), placeholder=PLACEHOLDER)
    message = replace(user_msg(1, prompt), spans=(span,), images=(image_of(1),))
    bench.send(message)
    bench.run()
    assert bench.output(1) == expected_output(
        prompt, message.sampling_params, VOCAB_SIZE, MAX_MODEL_LEN, (EOS,), (span,)
    )
    assert bench.gauge("encoding_bytes") == 4 * 4


def test_encodings_make_room_least_recently_used_first_and_never_those_that_are_needed():
    bench = Bench(span_rows=SimulatedSpanRows(13))
    for uid, content in enumerate((1, 2, 1, 3, 1)):
        bench.send(ask(uid, content))
        bench.run()
    assert bench.gauge("images_encoded") == 3, "the second made room"
    first, second = ask(10, 4, 5), ask(11, 6)
    bench.send(first, second)
    bench.plan()
    bench.send(bench.encoders.answer())
    bench.send(bench.encoders.answer())
    assert bench.plan(), "the first has its images"
    assert not asked(bench), "there is no room for that of the second"
    assert bench.gauge("images_waiting") == 1


def test_a_prompt_that_is_cached_needs_no_rows_again():
    bench = Bench(span_rows=SimulatedSpanRows(12))
    first = ask(1, 1, 2)
    for message in (first, ask(2, 3, 4), replace(first, uid=3)):
        bench.send(message)
        bench.run()
        check(bench, message)
    assert bench.end(3).usage.cached_tokens == 28
    assert bench.gauge("images_encoded") == 4
    bench.cache.flush()
    bench.send(replace(first, uid=4))
    bench.run()
    check(bench, replace(first, uid=4))
    assert bench.gauge("images_encoded") == 6


def test_what_no_cache_can_hold_is_refused_with_the_numbers():
    bench = Bench(span_rows=SimulatedSpanRows(11))
    bench.send(ask(1, 1, 2), ask(2, 1, 1))
    error = bench.end(1).error
    assert error is not None
    assert (error.status, error.param) == (400, "messages[1]")
    assert "--image-cache-mb" in error.message
    bench.run()
    check(bench, ask(2, 1, 1))
    with pytest.raises(RequestError, match="no encoder"):
        PlacedSpans(SimulatedSpanRows(), 4).refuse(ask(1, 1))


def test_an_image_that_cannot_be_encoded_ends_its_requests_alone_each_with_its_own_place():
    bench = Bench()
    messages = [ask(1, 1, 2), replace(ask(2, 2), images=(replace(image_of(2), param="input[7]"),)), ask(3, 1)]
    bench.send(*messages)
    bench.plan()
    bench.send(bench.encoders.answer(), bench.encoders.answer(bad_request("it is truncated", "somewhere").info))
    bench.run()
    ends = [bench.end(uid).error for uid in (1, 2)]
    assert [(end.status, end.message, end.param) for end in ends if end] == [
        (400, "it is truncated", "messages[2]"),
        (400, "it is truncated", "input[7]"),
    ]
    check(bench, messages[2])
    bench.send(replace(messages[1], uid=4))
    bench.run()
    check(bench, replace(messages[1], uid=4))


def test_an_aborted_request_is_forgotten_unless_another_needs_its_image():
    bench = Bench()
    bench.send(ask(1, 1, 2), ask(2, 2))
    bench.plan()
    (_, first), (_, second) = bench.encoders.open
    bench.send(AbortMsg(1, 0))
    assert bench.encoders.forgotten == [first.ask] != [second.ask]
    bench.run()
    check(bench, ask(2, 2))
    assert bench.gauge("images_encoded") == bench.gauge("images_cached") == 1


@pytest.mark.parametrize(
    "what", ["dies", "loses frames", "damages", "leaves", "loses the latest frames", "was not heard"]
)
def test_an_encoder_that_fails_is_asked_again(what: str):
    bench, messages = Bench(), [ask(1, 1, 2), ask(2, 3)]
    bench.send(EncoderStarted("encoder-2"), *messages)
    bench.plan()
    assert [name for name, _ in bench.encoders.open] == ["encoder", "encoder-2", "encoder"]
    if what == "dies":
        bench.send(bench.encoders.die(suspect=image_of(1).encoding_digest()))
        assert asked(bench) == [image_of(2), image_of(1), image_of(3)]
    elif what == "loses frames":
        bench.send(FramesLost("scheduler", 1, 2, 3))
        bench.encoders.open = bench.encoders.open[3:]
    elif what == "leaves":
        bench.encoders.die()
        bench.encoders.found = {"encoder-2"}
        bench.plan()
        assert [name for name, _ in bench.encoders.open] == ["encoder-2", "encoder-2"]
    elif what == "loses the latest frames":
        _, kept, _ = bench.encoders.open
        bench.encoders.open = [kept]
        bench.encoders.found = {"encoder", "encoder-2"}
        bench.plan()
        bench.send(*bench.encoders.answers)
        bench.plan()
        assert asked(bench) == [image_of(2), image_of(1), image_of(3)]
    elif what == "was not heard":
        bench.encoders.open.clear()
        bench.encoders.found = set()
        bench.plan()
        bench.encoders.found = {"encoder"}
        bench.plan()
        assert bench.encoders.answers == [EncoderStarted("encoder")]
        bench.send(*bench.encoders.answers)
    else:
        answer = bench.encoders.answer()
        bench.send(replace(answer, checksum=answer.checksum + 1))
    bench.run()
    check(bench, *messages)


def test_an_image_of_which_encoders_die_fails_alone():
    bench, messages = Bench(), [ask(1, 1), ask(2, 2)]
    bench.send(*messages)
    bench.plan()
    for _ in range(MAX_DEATHS):
        bench.send(bench.encoders.die(suspect=image_of(1).encoding_digest()))
    bench.run()
    error = bench.end(1).error
    assert error is not None
    assert (error.status, error.param) == (500, "messages[1]")
    check(bench, messages[1])


def test_a_successor_takes_intact_encodings_over_and_nothing_else():
    rows = SimulatedSpanRows(40)
    bench = Bench(span_rows=rows)
    for uid in (1, 2, 3):
        bench.send(ask(uid, uid))
        bench.run()
    bench.send(ask(4, 4))
    bench.plan()
    (_, late), damaged = bench.encoders.open[0], row_value(image_of(1).encoding_digest(), 3)
    rows.values[rows.values.index(damaged)] += 1
    successor = Bench(span_rows=SimulatedSpanRows(40, rows))
    assert successor.gauge("images_recovered") == successor.gauge("images_cached") == 2
    messages = [ask(5, 2), ask(6, 3), ask(7, 1), ask(8, 4)]
    successor.send(*messages)
    successor.step()
    assert asked(successor) == [image_of(1), image_of(4)]
    assert late.ask not in {message.ask for _, message in successor.encoders.open}
    successor.run()
    check(successor, *messages)


def test_a_chunk_ends_in_no_span_with_attention_in_both_directions():
    bench = Bench(max_num_batched_tokens=8, max_model_len=64)
    message = ask(1, 1, 2, is_two_way=True)
    bench.send(message, ask(2, 3, length=9, is_two_way=True))
    assert "at most 8 (--max-num-batched-tokens)" in str(bench.end(2).error)
    bench.send(user_msg(3, PROMPT, max_tokens=30, ignore_eos=True))
    bench.run()
    check(bench, message)
    ends = [end for batch in bench.runner.batches for uid, end in chunk_ends(batch) if uid == 1]
    assert len(ends) > 5
    assert not any(span.start < end < span.end for end in ends for span in message.spans)
    longer = replace(message, uid=4, input_ids=message.input_ids[: 4 * 17] + pack_int32([3] * 13))
    bench.send(longer)
    bench.run()
    assert bench.end(4).usage.cached_tokens == 8, "the second span begins at 11, and 16 tokens are cached"


def chunk_ends(batch: Batch) -> list[tuple[int, int]]:
    """Returns the uid of each row and the number of tokens that are computed after the step."""
    columns = unpack_int64(batch.uids), unpack_int32(batch.context_lens), unpack_int32(batch.query_lens)
    return [(uid, context + length) for uid, context, length in zip(*columns, strict=True)]


def test_a_preempted_request_finds_its_rows_again_or_asks_again():
    bench = Bench(num_pages=18, span_rows=SimulatedSpanRows(24))
    params = user_msg(1, [1], 30, ignore_eos=True).sampling_params
    messages = [replace(ask(uid, uid), sampling_params=params) for uid in range(4)]
    bench.send(*messages)
    bench.plan()
    bench.send(bench.encoders.answer(), bench.encoders.answer())
    bench.run()
    assert bench.gauge("preemptions") > 0
    check(bench, *messages)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("needs", [{}, {"windows": (9, 30)}, {"states": (16, 3)}, {"pages": True}])
def test_hundreds_of_mixed_requests_with_images_lose_nothing(needs):
    num_pages = 60 if {"windows", "states"} & set(needs) else 40
    if "pages" in needs:
        needs = {"pages": SimulatedPages(num_pages, 4)}
    rows = SimulatedSpanRows(40)
    bench = Bench(num_pages, 4, MAX_MODEL_LEN, max_num_batched_tokens=48, span_rows=rows, **needs)
    soak = Soak(33, 300, bench, span_share=0.7, has_images=True)
    soak.run()
    soak.check()
    assert bench.gauge("preemptions") > 0
    assert bench.gauge("image_hits") > 10
    assert bench.gauge("images_evicted") > 10
