import logging

import msgspec
import pytest

from frontend.sampling import SamplingDefaults, SamplingFields, make_sampling_params, sampling_defaults
from messages.requests import SamplingParams


def decode(text: str) -> SamplingParams:
    fields = msgspec.json.decode(text, type=SamplingFields)
    return make_sampling_params(fields, SamplingDefaults(), max_tokens=128, seed=99)


def test_an_empty_request_gets_the_defaults():
    assert decode("{}") == SamplingParams(max_tokens=128, seed=99)


def test_null_means_absent():
    nulls = ", ".join(f'"{name}": null' for name in SamplingFields.__struct_fields__)
    assert decode(f"{{{nulls}}}") == decode("{}")


def test_every_parameter_arrives():
    params = decode(
        """{"max_tokens": 5, "temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.1, "seed": -7,
        "stop": ["a", "bc"], "stop_token_ids": [1, 2], "ignore_eos": true, "include_stop_str_in_output": true,
        "skip_special_tokens": false, "cache_salt": "tenant"}"""
    )
    assert params == SamplingParams(5, 0.5, 0.9, 40, 0.1, -7, ("a", "bc"), (1, 2), True, True, False, "tenant")


def test_edges_of_the_ranges_are_taken():
    assert decode('{"top_k": -1}').top_k == 0
    assert decode('{"top_k": 0}').top_k == 0
    assert decode('{"temperature": 0}').is_greedy
    assert decode('{"temperature": 2, "top_p": 1, "min_p": 1, "max_tokens": 1}').temperature == 2.0
    assert decode('{"seed": 9223372036854775807}').seed == 2**63 - 1
    assert decode('{"stop": "x"}').stop == ("x",)


def test_the_model_may_bring_defaults():
    defaults = sampling_defaults({"temperature": 0.6, "top_p": 0.95, "top_k": 20.0})
    params = make_sampling_params(SamplingFields(top_p=0.5), defaults, max_tokens=1, seed=0)
    assert (params.temperature, params.top_p, params.top_k) == (0.6, 0.5, 20)


@pytest.mark.parametrize(("name", "value"), [("repetition_penalty", 1.1), ("temperature", 3.0), ("top_k", 1.5)])
def test_a_default_that_cannot_be_used_is_logged(name: str, value: float, caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING):
        assert sampling_defaults({name: value}) == SamplingDefaults()
    assert name in caplog.text


def test_a_neutral_default_is_not_worth_a_line(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING):
        sampling_defaults({"repetition_penalty": 1.0})
    assert not caplog.text
