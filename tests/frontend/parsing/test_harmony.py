"""Answers of gpt-oss: what OpenAI's own parser finds in them, and what it would refuse."""

import json
from pathlib import Path
from typing import Any

import pytest

from frontend.parsing.model_format import choose_format
from frontend.parsing.regions import Format
from tests.frontend.parsing.reading import Reading, read

ANSWERS: dict[str, Any] = json.loads(Path(__file__).with_name("harmony_answers.json").read_text(encoding="utf-8"))
TOOLS: dict[str, Any] = {"get_weather": {}, "now": {}, "a-b.c_1": {}}


def harmony() -> Format:
    found = choose_format("openai", "openai_gptoss", "").with_tools
    assert found is not None
    return found


def expected_of(messages: list[tuple[str, str | None, str]]) -> tuple[str, str, list[tuple[str, str]]]:
    """Returns content, reasoning and calls. Code of a built-in tool in the thought is a part of it."""
    content: list[str] = []
    reasoning: list[str] = []
    calls: list[tuple[str, str]] = []
    for channel, recipient, text in messages:
        if recipient is None or recipient.startswith("<|constrain|>"):
            (reasoning if channel == "analysis" else content).append(text)
        elif channel == "analysis" and not recipient.startswith("functions."):
            reasoning.append(text)
        else:
            calls.append((recipient.removeprefix("functions."), text))
    return "\n".join(content), "\n".join(reasoning), calls


@pytest.mark.parametrize("name", ANSWERS)
def test_answers_are_what_the_official_parser_finds(name: str):
    text, expected = ANSWERS[name]["text"], expected_of(ANSWERS[name]["messages"])
    whole = read(harmony(), text, TOOLS)
    assert (whole.content, whole.reasoning, whole.calls) == expected
    for cut in range(len(text) + 1):
        assert read(harmony(), text, TOOLS, cuts=[cut]) == whole
    for is_streamed in (False, True):
        assert read(harmony(), text, TOOLS, cuts=range(len(text)), is_streamed=is_streamed) == whole


FINAL = "<|channel|>final<|message|>"
CALL = "<|channel|>commentary to=functions.now <|constrain|>json<|message|>"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello.", Reading("Hello.", "", [], [])),
        ("<|message|>Hello.<|return|>", Reading("Hello.", "", [], [])),
        ("<|start|>assistant<|message|>Hello.", Reading("Hello.", "", [], [])),
        ("<|channel|>final Hello, world.<|end|>", Reading("<|channel|>final Hello, world.", "", [], [])),
        ("<|channel|><|channel|>final<|message|>Hi.", Reading("<|channel|>\nHi.", "", [], [])),
        (f"{FINAL}a<|end|>{FINAL}b", Reading("a\nb", "", [], [])),
        ("<|channel|>analysis<|message|>Hm.<|start|>assistant" + FINAL + "b", Reading("b", "Hm.", [], [])),
        (f'{CALL}{{"a": 1}}<|start|>assistant{FINAL}b', Reading("b", "", [("now", '{"a": 1}')], [])),
        (f'{CALL}{{"a": "<|call|><|start|>assistant"}}<|call|>', None),
        (f"{CALL}<|call|>", Reading("", "", [("now", "{}")], [])),
        (f"{CALL}none<|call|>", Reading(f"{CALL}none", "", [], [])),
        (
            f"{CALL}{{}}<|call|><|start|>assistant{CALL}{{}}<|call|>",
            Reading("", "", [("now", "{}"), ("now", "{}")], []),
        ),
        ("to=functions.now is how a call begins", Reading("to=functions.now is how a call begins", "", [], [])),
        (f"{FINAL} to=functions.now<|channel|>x", Reading(" to=functions.now", "", [], [])),
        ("<|start|>user<|message|>More?<|end|>", Reading("More?", "", [], [])),
        ("<|end|><|end|><|return|>", Reading("", "", [], [])),
    ],
)
def test_what_the_official_parser_refuses(text: str, expected: Reading | None):
    """No text is lost but headers and ends; a call that is complete counts, whatever follows."""
    whole = read(harmony(), text, TOOLS)
    if expected is not None:
        assert whole == expected
    for cut in range(len(text) + 1):
        assert read(harmony(), text, TOOLS, cuts=[cut]) == whole


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_cut_anywhere_shows_no_part_of_a_header(name: str):
    text = ANSWERS[name]["text"]
    marks = ["<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>", "<|return|>"]
    for cut in range(len(text)):
        is_token = any(
            text[cut - length :].startswith(mark) for mark in marks for length in range(1, min(cut + 1, len(mark)))
        )
        if is_token or text[:cut].endswith(("code<|message|>", "json<|message|>", "now<|message|>")):
            continue  # a special token is never cut; the header of a call without its arguments is shown
        reading = read(harmony(), text[:cut], TOOLS, is_cut=True)
        assert not any(mark in reading.content + reading.reasoning for mark in marks), text[:cut]
        assert reading.broken in ([], [0])
