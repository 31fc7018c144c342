"""Limits of thoughts with a real model: the same tokens alone, together, planned ahead, drafted, preempted."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from llguidance import LLMatcher

from messages.columns import unpack_int32
from messages.ring.requests import Grammar, SamplingParams, Thought
from runtime.grammars import GrammarCompiler
from scheduler_proc.grammar_builder import GrammarBuilder
from scheduler_proc.offline import OfflineEngine, Output
from tests.checkpoints import make_config
from tests.scheduler_proc.computing.backends.cuda.late_device import LateDevice, late_backend
from tokenizer_proc.thoughts import join_grammars, limit_of

MODEL_DIR = Path(__file__).resolve().parents[2] / "assets" / "shakespeare-gpt2"
PROMPTS = [[5, 6, 7], list(range(40, 90)), [9], [5, 6, 7, 8], list(range(60, 80)), [1] * 30]
BUDGETS = [0, 1, 7, 20, 30, 200]
MAX_TOKENS = 50


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    config = make_config(MODEL_DIR)
    return GrammarCompiler(str(MODEL_DIR), config.facts.vocab_size, config.facts.eos_token_ids)


def make_params(compiler: GrammarCompiler, number: int, *, has_answer: bool) -> SamplingParams:
    tokenizer = compiler.tokenizer()
    thought = Thought("<think>", "</think>", budget=BUDGETS[number], place="inside")
    answer = LLMatcher.grammar_from_regex("[a-z ]{40}")
    text = join_grammars(thought, None, answer, tokenizer) if has_answer else ""
    grammar = Grammar("llguidance", text, "p", limit=limit_of(thought, tokenizer))
    return SamplingParams(MAX_TOKENS, temperature=0.8, seed=number, grammar=grammar, ignore_eos=True)


def make_engine(**flags: Any) -> OfflineEngine:
    config = make_config(MODEL_DIR, **flags)
    return OfflineEngine(config, make_grammars=partial(GrammarBuilder, config))


def generate(params: list[SamplingParams], *, together: bool = True, **flags: Any) -> list[Output]:
    engine = make_engine(**flags)
    if together:
        return engine.generate(PROMPTS, params)
    return [engine.generate([prompt], [own])[0] for prompt, own in zip(PROMPTS, params, strict=True)]


@pytest.mark.parametrize("has_answer", [False, True])
def test_a_thought_ends_at_its_budget_however_its_tokens_are_computed(
    compiler: GrammarCompiler, has_answer: bool
) -> None:
    params = [make_params(compiler, number, has_answer=has_answer) for number in range(len(PROMPTS))]
    expected = generate(params, together=False, overlap=False)
    tokenizer = compiler.tokenizer()
    for output, own, budget in zip(expected, params, BUDGETS, strict=True):
        assert output.error is None
        assert own.grammar is not None
        assert own.grammar.limit is not None
        end_ids = unpack_int32(own.grammar.limit.end_ids).tolist()
        assert len(end_ids) > 1
        text = tokenizer.decode_str(output.token_ids)
        if budget < MAX_TOKENS:
            assert output.token_ids[budget : budget + len(end_ids)] == end_ids
            assert text.count("</think>") == 1 or not has_answer
        else:
            assert "</think>" not in text
    few_pages = {"num_pages": 16, "max_model_len": 256}
    ways: list[dict[str, Any]] = [{}, few_pages, {"speculative": "ngram"}, {"max_num_batched_tokens": 16}]
    for flags in ways:
        outputs = generate(params, **flags)
        assert [output.token_ids for output in outputs] == [output.token_ids for output in expected], flags


def test_steps_are_planned_ahead_until_a_thought_must_end(compiler: GrammarCompiler) -> None:
    """On a device that stands in for a GPU."""
    params = [make_params(compiler, number, has_answer=False) for number in range(len(PROMPTS))]
    outputs: list[list[list[int]]] = []
    for flags in ({}, {"overlap": False}):
        with late_backend(LateDevice):
            engine = make_engine(max_num_seqs=4, max_num_batched_tokens=32, **flags)
        outputs.append([output.token_ids for output in engine.generate(PROMPTS, params)])
        assert (engine.gauges["steps_ahead"] > 20) == (not flags)
    assert outputs[0] == outputs[1]
    assert outputs[0] == [output.token_ids for output in generate(params)]
