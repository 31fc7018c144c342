import json
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import get_args, get_type_hints

import msgspec
import pytest
from msgspec import Meta

from frontend.api.parameters.grammar import GrammarFields
from frontend.api.parameters.sampling import (
    MAX_REPETITION_PENALTY,
    MAX_STOP_IDS,
    MAX_TEXT_CHARS,
    Sampling,
    SamplingDefaults,
    SamplingFields,
    sampling_defaults,
)
from messages.columns import pack_float32, pack_int32
from messages.errors import RequestError
from messages.ring.dry import Dry
from messages.ring.requests import SamplingParams
from tests.frontend.frontend_run import FACTS


def decode(text: str, *, echo: bool = False, defaults: dict[str, float] | None = None) -> SamplingParams:
    fields = msgspec.json.decode(text, type=SamplingFields)
    sampling = Sampling(msgspec.structs.replace(FACTS, sampling_defaults=defaults or {}))
    return sampling.make_params(fields, max_tokens=128, seed=99, echo=echo)


def test_an_empty_request_gets_the_defaults():
    assert decode("{}") == SamplingParams(max_tokens=128, seed=99)


def test_null_means_absent():
    nulls = ", ".join(f'"{name}": null' for name in SamplingFields.__struct_fields__)
    assert decode(f"{{{nulls}}}") == decode("{}")


def test_every_parameter_arrives():
    params = decode(
        """{"max_tokens": 5, "temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.1, "seed": -7,
        "stop": ["a", "bc"], "stop_token_ids": [1, 2], "ignore_eos": true, "include_stop_str_in_output": true,
        "skip_special_tokens": false, "cache_salt": "tenant", "min_tokens": 2, "presence_penalty": -1,
        "frequency_penalty": 2, "repetition_penalty": 1.5, "logit_bias": {"7": -100, "999": 2.5},
        "allowed_token_ids": [3, 7], "bad_words": ["no", "never"], "prompt_logprobs": 4, "priority": -3,
        "top_n_sigma": 1.5, "typical_p": 0.7, "xtc_probability": 0.5, "xtc_threshold": 0.2,
        "dry_multiplier": 0.8, "dry_base": 2, "dry_allowed_length": 3, "dry_penalty_last_n": 9,
        "dry_sequence_breakers": ["x"]}"""
    )
    assert params == SamplingParams(
        *(5, 0.5, 0.9, 40, 0.1, -7, ("a", "bc"), (1, 2), True, True, False, "tenant"),
        min_tokens=2,
        presence_penalty=-1.0,
        frequency_penalty=2.0,
        repetition_penalty=1.5,
        bias_ids=pack_int32([7, 999]),
        bias_values=pack_float32([-100.0, 2.5]),
        allowed_token_ids=pack_int32([3, 7]),
        bad_words=("no", "never"),
        num_prompt_logprobs=4,
        priority=-3,
        top_n_sigma=1.5,
        typical_p=0.7,
        xtc_probability=0.5,
        xtc_threshold=0.2,
        dry=Dry(0.8, 2.0, 3, 9, ("x",)),
    )


def test_edges_of_the_ranges_are_taken():
    assert decode('{"top_k": -1}').top_k == 0
    assert decode('{"top_k": 0}').top_k == 0
    assert decode('{"top_n_sigma": -1}') == decode("{}")
    assert decode('{"dry_multiplier": 0, "dry_base": 2}') == decode("{}")
    assert decode('{"dry_multiplier": 1}').dry == Dry(1.0, 1.75, 2, -1, ("\n", ":", '"', "*"))
    assert decode('{"temperature": 0}').is_greedy
    assert decode('{"temperature": 2, "top_p": 1, "min_p": 1, "max_tokens": 1}').temperature == 2.0
    assert decode('{"seed": 9223372036854775807}').seed == 2**63 - 1
    assert decode('{"stop": "x"}').stop == ("x",)
    assert len(decode(json.dumps({"stop": ["x"] * 64})).stop) == 64
    assert decode('{"stop_token_ids": [999]}').stop_token_ids == (999,)
    assert decode('{"min_tokens": 128}').min_tokens == 128
    assert decode('{"logit_bias": {}, "bad_words": [], "priority": 0}') == decode("{}")


def test_biases_as_a_list():
    params = decode('{"logit_bias": [[7, 1], ["the", -2.5], [7, 0.5], [9, false], ["a b", false]]}')
    assert (params.bias_ids, params.bias_values) == (pack_int32([7]), pack_float32([1.5]))
    assert params.bad_word_ids == (pack_int32([9]),)
    assert params.bias_texts == (("the", -2.5), ("a b", None))


def test_a_repetition_penalty_stays_within_what_logits_bear():
    assert decode('{"repetition_penalty": 1e300}').repetition_penalty == MAX_REPETITION_PENALTY
    assert decode('{"repetition_penalty": 1e-300}').repetition_penalty == 1 / MAX_REPETITION_PENALTY


def test_no_output_needs_something_of_the_prompt():
    assert decode('{"max_tokens": 0}', echo=True).max_tokens == 0
    assert decode('{"max_tokens": 0, "prompt_logprobs": 0}').max_tokens == 0
    with pytest.raises(RequestError, match="max_tokens must be a whole number from 1 to 2147483647, got 0"):
        decode('{"max_tokens": 0}')


def test_the_model_may_bring_defaults():
    of_model = {"temperature": 0.6, "top_p": 0.95, "top_k": 20.0, "repetition_penalty": 1.1}
    params = decode('{"top_p": 0.5}', defaults=of_model)
    assert (params.temperature, params.top_p, params.top_k, params.repetition_penalty) == (0.6, 0.5, 20, 1.1)
    assert decode('{"repetition_penalty": 1}', defaults=of_model).repetition_penalty == 1.0


def test_chats_of_people_have_defaults_if_the_model_has_none():
    params = decode('{"sampling_defaults": "chat", "top_k": 7}')
    assert (params.temperature, params.top_k, params.top_p, params.min_p) == (0.8, 7, 0.95, 0.05)
    params = decode('{"sampling_defaults": "chat"}', defaults={"temperature": 0.6})
    assert (params.temperature, params.top_k, params.top_p, params.min_p) == (0.6, 0, 1.0, 0.0)
    assert decode('{"sampling_defaults": "model"}').temperature == 1.0


@pytest.mark.parametrize(("name", "value"), [("repetition_penalty", 0.0), ("temperature", 3.0), ("top_k", 1.5)])
def test_a_default_that_cannot_be_used_is_logged(name: str, value: float, caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING):
        assert sampling_defaults({name: value}) == SamplingDefaults()
    assert name in caplog.text


PAGE_ROW = re.compile(r"^\| `(\w+)` \| (.+?) \| (.+?) \| .+ \|$", re.MULTILINE)


def test_the_page_has_every_parameter_with_what_it_takes_and_its_default():
    page = Path(__file__).resolve().parents[4].joinpath("docs/use/parameters.md").read_text(encoding="utf-8")
    rows = PAGE_ROW.findall(page.partition("| parameter | takes | default | |")[2].partition("\n\n")[0])
    names = [name for name in SamplingFields.__struct_fields__ if name not in GrammarFields.__struct_fields__]
    assert sorted(name for name, _, _ in rows) == sorted(names)
    hints = get_type_hints(SamplingFields, include_extras=True)
    for name, takes, default in rows:
        assert takes == next(part.description for part in get_args(hints[name]) if isinstance(part, Meta))
        if default.startswith("`") and not default.startswith("`--"):
            others = {"dry_multiplier": 1} if name.startswith("dry_") and name != "dry_multiplier" else {}
            provided = {**others, name: json.loads(default.strip("`*"))}
            assert decode(json.dumps(provided)) == decode(json.dumps(others)), name


def test_ids_and_words_that_are_provided_again_are_no_more_work():
    params = decode(
        """{"allowed_token_ids": [7, 3, 7, 7, 3], "stop_token_ids": [5, 5, 2, 5], "bad_words": ["b", "a", "b"],
        "logit_bias": [[4, false], [4, false]]}"""
    )
    assert params.allowed_token_ids == pack_int32([7, 3])
    assert params.stop_token_ids == (5, 2)
    assert params.bad_words == ("b", "a")
    assert params.bad_word_ids == (pack_int32([4]),)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("bad_words", lambda half: [half, half]),
        ("stop", lambda half: [half, half]),
        ("dry_sequence_breakers", lambda half: [half, half]),
        ("logit_bias", lambda half: [[half, 1], [half, False], [3, 1]]),
    ],
)
def test_the_strings_of_a_field_are_bounded_together(name: str, values: Callable[[str], object]):
    decode(json.dumps({name: values("x" * (MAX_TEXT_CHARS // 2))}))
    with pytest.raises(RequestError) as raised:
        decode(json.dumps({name: values("x" * (MAX_TEXT_CHARS // 2 + 1))}))
    assert raised.value.info.param == name
    assert str(raised.value) == (
        f"the strings in {name} may have {MAX_TEXT_CHARS} characters in total, got {MAX_TEXT_CHARS + 2}"
    )


def test_stop_token_ids_are_bounded():
    vocab_size = FACTS.vocab_size
    ids = list(range(min(vocab_size, MAX_STOP_IDS)))
    assert len(decode(json.dumps({"stop_token_ids": ids * 2})).stop_token_ids) == len(ids)
    sampling = Sampling(msgspec.structs.replace(FACTS, vocab_size=2 * MAX_STOP_IDS))
    fields = msgspec.json.decode(json.dumps({"stop_token_ids": [*range(MAX_STOP_IDS + 1)]}), type=SamplingFields)
    with pytest.raises(RequestError, match=f"may have {MAX_STOP_IDS} different ids, got {MAX_STOP_IDS + 1}"):
        sampling.make_params(fields, max_tokens=1, seed=0)
