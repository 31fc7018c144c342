"""Limits of thoughts with the real compiler: exact, equal after each cut of the output, and with draft tokens."""

import json
from array import array
from collections.abc import Sequence
from pathlib import Path

import pytest

from messages.columns import pack_int32
from messages.ring.requests import Thought, ThoughtLimit
from runtime.grammars import GrammarCompiler
from scheduler_proc.deciding.sampling.grammars import RequestGrammar, make_grammar
from scheduler_proc.deciding.sampling.thought_limits import FollowedThought
from tokenizer_proc.thoughts import limit_of

ASSETS = Path(__file__).resolve().parents[4] / "assets"
VOCAB_SIZE = 600
ANSWER = '{"grammars": [{"lark_grammar": "start: /(.|\\\\n)*/"}]}'


@pytest.fixture(scope="module", params=["marks are tokens", "marks are spelt"])
def compiler(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> GrammarCompiler:
    tokenizer = json.loads((ASSETS / "tool-caller" / "tokenizer.json").read_text())
    if request.param == "marks are tokens":
        for index, content in enumerate(("<think>", "</think>")):
            tokenizer["added_tokens"].append({**tokenizer["added_tokens"][-1], "id": 595 + index, "content": content})
    path = tmp_path_factory.mktemp("tokenizer")
    (path / "tokenizer.json").write_text(json.dumps(tokenizer))
    return GrammarCompiler(str(path), VOCAB_SIZE, (0,))


def ids_of(compiler: GrammarCompiler, text: str) -> list[int]:
    return compiler.tokenizer().tokenize_str(text, parse_special=True)


def make_limit(compiler: GrammarCompiler, budget: int, place: str) -> ThoughtLimit:
    limit = limit_of(Thought("<think>", "</think>", budget=budget, place=place), compiler.tokenizer())  # pyright: ignore
    assert limit is not None
    return limit


def make(
    compiler: GrammarCompiler, budget: int, place: str = "inside", output: Sequence[int] = (), text: str = ""
) -> RequestGrammar:
    """Returns the grammar of a request with this output; `text` is its grammar in addition to the limit."""
    limit, output_ids = make_limit(compiler, budget, place), array("i", output)
    thought = FollowedThought(limit, compiler.compile(limit.text), output_ids)
    matcher = compiler.compile(text) if text else None
    return make_grammar(matcher, compiler.tokenizer(), output_ids, VOCAB_SIZE, (0,), thought=thought)


def only_of(bitmask: bytes) -> int | None:
    """Returns the only allowed token, `None` if all are allowed."""
    bits = int.from_bytes(bitmask, "little")
    assert not bitmask or bits.bit_count() == 1
    return bits.bit_length() - 1 if bitmask else None


def show(grammar: RequestGrammar, target: Sequence[int]) -> list[int]:
    """Returns the output of a model that wants to say this, which the grammar may prevent."""
    output: list[int] = []
    for token_id in target:
        only = only_of(grammar.bitmask())
        output.append(token_id if only is None else only)
        assert grammar.accept(output[-1]) is None
    return output


@pytest.mark.parametrize("budget", [0, 1, 2, 7])
def test_a_thought_is_closed_at_its_budget_exactly(compiler: GrammarCompiler, budget: int) -> None:
    words, end = ids_of(compiler, " the city and the time of a day, so what is it?"), ids_of(compiler, "</think>")
    assert show(make(compiler, budget), words) == words[:budget] + end + words[budget + len(end) :]
    opening = ids_of(compiler, "<think>")
    expected = opening + words[:budget] + end
    assert show(make(compiler, budget, "before"), [*opening, *words])[: len(expected)] == expected


def test_a_thought_that_ends_earlier_is_left_alone(compiler: GrammarCompiler) -> None:
    words, end = ids_of(compiler, " the city"), ids_of(compiler, "</think>")
    for text in (" the city</think>\n\nand the time of a day, so what is it?", "</think>and </think> and then some"):
        assert show(make(compiler, 20), ids_of(compiler, text)) == ids_of(compiler, text)
    assert show(make(compiler, len(words)), [*words, *end, *words]) == [*words, *end, *words]


def test_an_answer_without_a_thought_has_no_limit(compiler: GrammarCompiler) -> None:
    for text in (
        " the city and the time",
        "< think>the city and the time",
        "<tool_call>\n<think>the city and the time",
    ):
        assert show(make(compiler, 1, "before"), ids_of(compiler, text)) == ids_of(compiler, text)


def test_special_tokens_in_a_thought_count_and_do_not_end_it(compiler: GrammarCompiler) -> None:
    call, end = ids_of(compiler, "<tool_call>"), ids_of(compiler, "</think>")
    assert len(call) == 1
    target = ids_of(compiler, " the") + call * 9
    assert show(make(compiler, 4), target)[: 4 + len(end)] == target[:4] + end


@pytest.mark.parametrize("place", ["inside", "before"])
def test_a_continuation_continues_as_the_output_would_have(compiler: GrammarCompiler, place: str) -> None:
    target = ids_of(compiler, ("<think>" if place == "before" else "") + " the city and the time of a day, so what?")
    whole = show(make(compiler, 5, place), target)
    assert whole != target
    for length in range(len(whole) + 1):
        assert show(make(compiler, 5, place, whole[:length]), target[length:]) == whole[length:], length


@pytest.mark.parametrize("place", ["inside", "before"])
def test_draft_tokens_are_looked_through_and_forgotten(compiler: GrammarCompiler, place: str) -> None:
    target = ids_of(compiler, ("<think>" if place == "before" else "") + " the city and the time of a day, so what?")
    whole = show(make(compiler, 5, place), target)
    early = ids_of(compiler, "<think> the</think> city and the time of a day"[0 if place == "before" else 7 :])
    for output in (whole, early):
        masks = [only_of(make(compiler, 5, place, output[:length]).bitmask()) for length in range(len(output))]
        for start in range(0, len(output), 3):
            grammar = make(compiler, 5, place, output[:start])
            seen = [only_of(grammar.bitmask(output[start:end])) for end in range(start, len(output))]
            assert seen == masks[start:]
            assert only_of(grammar.bitmask()) == masks[start]


def test_the_limit_holds_within_a_grammar_too(compiler: GrammarCompiler) -> None:
    grammar = make(compiler, 3, text=ANSWER)
    the, end = ids_of(compiler, " the")[0], ids_of(compiler, "</think>")
    for _ in range(3):
        bits = int.from_bytes(grammar.bitmask(), "little")
        assert bits >> the & 1
        grammar.accept(the)
    assert grammar.forced_ids(99).tolist() == end
    assert only_of(grammar.bitmask()) == end[0]


def test_the_next_step_may_be_planned_until_one_token_may_decide(compiler: GrammarCompiler) -> None:
    """And again when the thought is over."""
    the, end = ids_of(compiler, " the")[0], ids_of(compiler, "</think>")
    grammar = make(compiler, 4)
    seen: list[bool] = []
    for token_id in [the] * 4 + end:
        seen.append(grammar.needs_last_token)
        grammar.accept(token_id)
    assert seen == [False] * 3 + [True] * (1 + len(end))
    assert not grammar.needs_last_token


def test_end_ids_are_those_of_the_mark(compiler: GrammarCompiler) -> None:
    assert make_limit(compiler, 3, "inside").end_ids == pack_int32(ids_of(compiler, "</think>"))
