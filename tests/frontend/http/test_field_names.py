import json
import logging
from typing import Annotated, Any

import msgspec
import pytest
from msgspec import Meta, Raw

from frontend.http.body import MAX_FIELDS, BodyDecoder
from frontend.http.field_names import MAX_LOGGED_NAMES, NameRules, UnknownFields, agree
from messages.errors import RequestError

RULES = NameRules(
    refused={"suffix": ("",)},
    ignored=("verbosity",),
    renamed={"max_new_tokens": "max_tokens", "rep_pen": "penalty", "repeat_penalty": "penalty", "seeds": "seed"},
    foreign=("top_a", "timeout"),
)


class Body(msgspec.Struct, frozen=True, kw_only=True):
    max_tokens: Annotated[Annotated[int, Meta(ge=1)] | None, Meta(description="a whole number from 1")] = None
    penalty: Annotated[float | None, Meta(description="a number")] = None
    top_p: Annotated[float | None, Meta(description="a number")] = None
    timeout_s: Annotated[float | None, Meta(description="a number")] = None


def read(body: dict[str, Any], *, is_strict: bool = False) -> tuple[Body, list[str]]:
    return BodyDecoder(Body, RULES, UnknownFields(is_strict=is_strict)).read(json.dumps(body).encode())


def refusal(body: dict[str, Any], *, is_strict: bool = False) -> RequestError:
    with pytest.raises(RequestError) as raised:
        read(body, is_strict=is_strict)
    assert raised.value.info.status == 400
    return raised.value


def test_names_of_other_servers_are_ignored_with_a_warning_however_like_ours_they_look():
    fields, warnings = read({"top_a": 0.5, "timeout": 5, "top_p": 0.25})
    assert fields == Body(top_p=0.25)
    assert warnings == [
        "the field 'top_a' of other servers has no effect here and is ignored",
        "the field 'timeout' of other servers has no effect here and is ignored",
    ]


def test_a_name_that_no_one_knows_is_ignored_with_a_warning():
    assert read({"zzz": {"a": [1]}}) == (Body(), ["the field 'zzz' is not known here and is ignored"])


@pytest.mark.parametrize("number", [b"1e999", b"-1e999", b"[[1e999]]", b'{"a": 1e999}'])
def test_a_number_that_no_float_holds_is_ignored_or_refused_with_its_field(number: bytes):
    decoder = BodyDecoder(Body, RULES)
    assert decoder.read(b'{"zzz": %b}' % number) == (Body(), ["the field 'zzz' is not known here and is ignored"])
    for body, message in (
        (b'{"zzz": %b, "top_p": "x"}', 'top_p must be a number, got "x"'),
        (b'{"suffix": %b}', "suffix is not supported, got "),
        (b'{"top_p": %b}', "top_p must be a number, got "),
    ):
        with pytest.raises(RequestError) as raised:
            decoder.read(body % number)
        assert raised.value.info.status == 400
        assert str(raised.value).startswith(message)


def test_what_is_known_to_mean_nothing_is_no_warning():
    assert read({"verbosity": "low", "suffix": ""}) == (Body(), [])


@pytest.mark.parametrize(("name", "meant"), [("max_token", "max_tokens"), ("topp", "top_p"), ("suffixes", "suffix")])
def test_a_misspelling_is_refused(name: str, meant: str):
    error = refusal({name: 1})
    assert str(error) == f"unknown field {name!r}: did you mean {meant}?"
    assert error.info.param == name


def test_another_name_for_a_field_of_ours_is_that_field():
    assert read({"max_new_tokens": 5, "repeat_penalty": 1.5}) == (Body(max_tokens=5, penalty=1.5), [])
    assert read({"max_new_tokens": 5, "max_tokens": None}) == (Body(max_tokens=5), [])
    assert read({"max_new_tokens": None, "max_tokens": 6, "rep_pen": None}) == (Body(max_tokens=6), [])


def test_a_refusal_has_the_name_that_was_provided():
    error = refusal({"max_new_tokens": 0})
    assert (str(error), error.info.param) == ("max_new_tokens must be a whole number from 1, got 0", "max_new_tokens")


@pytest.mark.parametrize("names", [("max_tokens", "max_new_tokens"), ("repeat_penalty", "rep_pen")])
def test_two_names_for_one_field_are_refused_unless_their_values_agree(names: tuple[str, str]):
    for first, second in (names, names[::-1]):
        assert read({first: 1, second: 1})[0] in (Body(max_tokens=1), Body(penalty=1.0))
        error = refusal({first: 1, second: 2})
        assert str(error).endswith("mean the same and have different values: give one of them")
        assert first in str(error)
        assert second in str(error)


def test_a_value_that_sets_nothing_is_no_second_value():
    rules = NameRules(renamed={"pen": "penalty"}, neutral={"pen": (0, "")})
    for body in (
        b'{"pen": 0, "penalty": 2}',
        b'{"pen": "", "penalty": 2}',
        b'{"pen": 2}',
        b'{"pen": 2, "penalty": 2.0}',
    ):
        assert BodyDecoder(Body, rules).read(body) == (Body(penalty=2.0), [])


def test_long_values_agree_only_if_they_are_written_alike():
    """Comparing decoded values takes time and memory."""
    for size, is_same in ((500, True), (5_000, False)):
        one, other = (json.dumps(["a"] * size, separators=pair).encode() for pair in ((",", ":"), (", ", ":")))
        assert agree(Raw(one), Raw(one))
        assert agree(Raw(one), Raw(other)) is is_same


def test_a_field_that_the_endpoint_has_not_has_no_other_name():
    assert read({"seeds": 1})[1] == ["the field 'seeds' is not known here and is ignored"]


@pytest.mark.parametrize(
    ("body", "fragment"),
    [
        ({"zzz": 1}, "unknown field 'zzz'"),
        ({"top_a": 1}, "unknown field 'top_a'"),
        ({"max_new_tokens": 1}, "unknown field 'max_new_tokens': did you mean max_tokens?"),
    ],
)
def test_strictly_every_unknown_name_is_refused(body: dict[str, Any], fragment: str):
    assert fragment in str(refusal(body, is_strict=True))
    assert read({"top_p": 1, "verbosity": "low"}, is_strict=True)[1] == []


def test_the_log_has_each_name_once_and_not_without_end(caplog: pytest.LogCaptureFixture):
    unknown = UnknownFields()
    decoders = [BodyDecoder(Body, RULES, unknown) for _ in range(2)]
    with caplog.at_level(logging.WARNING):
        for decoder in decoders * 3:
            decoder.read(b'{"top_a": 1, "zzz": 2}')
        assert len(caplog.records) == 2
        for index in range(2 * MAX_LOGGED_NAMES):
            decoders[0].read(b'{"%d": 1}' % index)
    assert len(caplog.records) == MAX_LOGGED_NAMES


def test_a_long_name_is_cut_short():
    fields, (warning,) = read({"z" * 100_000: 1})
    assert fields == Body()
    assert len(warning) < 150


def test_a_body_of_very_many_fields_is_refused_before_they_are_looked_at():
    body = {f"field_{index}": 1 for index in range(MAX_FIELDS + 1)}
    assert str(refusal(body)) == f"the body has more than {MAX_FIELDS} fields"
