"""The message about a step for the detokenizer."""

from msgspec.structs import replace

from messages.columns import unpack_int32, unpack_int64
from messages.ring.spans import DIGEST_BYTES, PromptSpan
from messages.ring.steps import LogprobColumns
from scheduler_proc.deciding.requests import Limits, PendingReq
from scheduler_proc.deciding.rows.decode_rows import DecodeRows
from scheduler_proc.deciding.rows.delivery import Delivery, usage_of
from tests.scheduler_proc.clients import user_msg
from tests.scheduler_proc.deciding.sampling.test_logprob_columns import columns

LIMITS = Limits(64, 50)


def pending(uid: int, attempt: int = 0) -> PendingReq:
    return PendingReq(user_msg(uid, [1, 2, 3], attempt=attempt), LIMITS, 1)


def test_one_token_each_needs_no_counts():
    delivery = Delivery(9)
    delivery.add(pending(4), [7], None)
    delivery.add(pending(5, attempt=2), [8], columns(1, 2))
    message = delivery.message(())
    assert message.step_id == 9
    assert (list(unpack_int64(message.uids)), list(unpack_int32(message.attempts))) == ([4, 5], [0, 2])
    assert (list(unpack_int32(message.token_ids)), message.num_tokens) == ([7, 8], b"")
    assert (list(unpack_int32(message.logprob_entries)), message.logprobs) == ([1], columns(1, 2))


def test_logprobs_are_those_of_tokens_and_a_row_without_tokens_is_left_out():
    delivery, parts = Delivery(9), [columns(3, 2), columns(1, 2, first=3)]
    delivery.add_decode_rows(DecodeRows(4), (), DecodeRows(4).token_ids, None)
    delivery.add(pending(4), [7], None)
    delivery.add(pending(5), [], None)
    delivery.add(pending(6), [1, 2, 3], parts[0])
    delivery.add(pending(7), [5, 6], None)
    delivery.add(pending(8), [9], parts[1])
    message = delivery.message(())
    assert list(unpack_int64(message.uids)) == [4, 6, 7, 8]
    assert list(unpack_int32(message.num_tokens)) == [1, 3, 2, 1]
    assert list(unpack_int32(message.token_ids)) == [7, 1, 2, 3, 5, 6, 9]
    assert list(unpack_int32(message.logprob_entries)) == [1, 2, 3, 6]
    assert isinstance(message.logprobs, LogprobColumns)
    assert message.logprobs.token_ids == parts[0].token_ids + parts[1].token_ids


def test_usage_counts_the_tokens_of_images_and_not_those_of_given_vectors():
    digest = bytes(DIGEST_BYTES)
    spans = (PromptSpan(1, 4, digest, "image", 0), PromptSpan(6, 2, digest), PromptSpan(8, 1, digest, "image", 1))
    message = replace(user_msg(4, [0] * 10), spans=spans)
    assert usage_of(PendingReq(message, LIMITS, 1)).image_tokens == 5
