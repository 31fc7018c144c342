"""Sampling parameters as columns of a batch, for decode rows and for requests that sample several tokens."""

from hypothesis import given
from hypothesis import strategies as st

from scheduler_proc.deciding.requests import Limits, PendingReq
from scheduler_proc.deciding.rows.sampling_columns import VALUES, SamplingColumns
from tests.scheduler_proc.clients import user_msg

PARAMETERS = st.sampled_from(
    [
        {"temperature": 0.0},
        {"temperature": 0.7, "top_p": 0.9, "seed": 5},
        {"temperature": 1.0, "top_k": 4, "min_p": 0.1},
        {"temperature": 1.0, "num_logprobs": 2},
        {"temperature": 1.0, "xtc_probability": 0.5, "xtc_threshold": 0.2},
    ]
)


def pending(parameters: dict) -> PendingReq:
    return PendingReq(user_msg(1, [1, 2, 3], 20, **parameters), Limits(64, 100), 0)


@given(st.lists(PARAMETERS, max_size=3), st.lists(st.tuples(PARAMETERS, st.integers(1, 4)), max_size=3))
def test_a_request_has_an_entry_for_each_token_that_it_samples_whether_or_not_any_has_optional_numbers(first, runs):
    rows, expected, others = SamplingColumns(), SamplingColumns(), [(pending(own), count) for own, count in runs]
    for own in first:
        rows.append(pending(own))
        expected.append(pending(own))
    for request, count in others:
        expected.append(request, count)
    for _ in range(2):
        joined = {name: rows.with_runs(others).get(name, b"") for name in VALUES}
        assert joined == expected.pack()
