"""The outputs of a row, by its request's parameters."""

import pytest

from scheduler_proc.deciding.pages.radix import RadixTree
from scheduler_proc.deciding.pages.running_request import Req
from scheduler_proc.deciding.requests import Limits, PendingReq
from scheduler_proc.deciding.sampling.output_counts import OutputCounts
from tests.scheduler_proc.clients import user_msg

PROMPT = [3, 1, 4, 1, 5, 9]


def make_req(max_tokens: int = 4, **params) -> Req:
    pending = PendingReq(user_msg(1, PROMPT, max_tokens, **params), Limits(64, 50), 1)
    return Req(pending, RadixTree(4).root)


@pytest.mark.parametrize(
    ("params", "start", "end", "expected"),
    [
        ({}, 0, 4, OutputCounts()),
        ({}, 4, 6, OutputCounts(1)),
        ({"num_logprobs": 2}, 0, 4, OutputCounts()),
        ({"num_logprobs": 0}, 4, 6, OutputCounts(1, 1)),
        # The logprob of a prompt token comes with the token before it, so the last token of the prompt gives none.
        ({"num_prompt_logprobs": 0}, 0, 4, OutputCounts(0, 0, 4)),
        ({"num_prompt_logprobs": 0, "num_logprobs": 0}, 4, 6, OutputCounts(1, 1, 1)),
        ({"num_prompt_logprobs": 0, "echo": True, "max_tokens": 0}, 0, 6, OutputCounts(0, 0, 5)),
    ],
)
def test_a_chunk_requests_what_its_tokens_give(params, start, end, expected):
    assert make_req(**params).outputs_in_prefill(start, end) == expected


def test_a_row_in_decode_requests_a_token_after_each_draft_token_and_one_more():
    assert make_req().outputs_in_decode() == OutputCounts(1)
    assert make_req(num_logprobs=3).outputs_in_decode(num_drafts=2) == OutputCounts(3, 3)


def test_a_row_that_got_fewer_tokens_has_fewer_logprobs():
    assert OutputCounts(3, 3, 2).limited(1) == OutputCounts(1, 1, 2)
    assert OutputCounts(3, 0, 2).limited(0) == OutputCounts(0, 0, 2)
