import resource
from array import array
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from random import Random

import pytest
from llguidance import LLMatcher

from messages.columns import pack_float32, pack_int32
from messages.errors import ErrorInfo
from messages.ring.requests import AbortMsg, Grammar, SamplingParams
from runtime.grammars import GrammarCompiler
from scheduler_proc.deciding.drafting.drafts import NO_DRAFT, Draft
from scheduler_proc.deciding.pages.running_request import Req
from scheduler_proc.deciding.sampling.endings import Ending, end_tokens_of
from scheduler_proc.deciding.sampling.grammars import MAX_FORCED, RequestGrammar, make_grammar
from scheduler_proc.deciding.scheduler import Scheduler
from tests.scheduler_proc.clients import EOS, VOCAB_SIZE, Bench, user_msg
from tests.scheduler_proc.simulated_grammar import (
    FORCING,
    SimulatedTokenizer,
    allowed_next,
    grammar_of,
)

MODEL_DIR = Path(__file__).resolve().parents[4] / "assets" / "shakespeare-gpt2"
REAL_VOCAB_SIZE, REAL_EOS = 3072, 0


@cache
def compiler_of(vocab_size: int) -> GrammarCompiler:
    """Returns one for a model that has as many tokens as its tokenizer, fewer or more."""
    return GrammarCompiler(str(MODEL_DIR), vocab_size, (REAL_EOS,))


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return compiler_of(REAL_VOCAB_SIZE)


def real_grammar(compiler: GrammarCompiler, regex: str, output: str = "", **params: object) -> RequestGrammar:
    sampling = SamplingParams(50, **params)
    output_ids = array("i", compiler.tokenizer().tokenize_str(output))
    matcher = compiler.compile(LLMatcher.grammar_from_regex(regex))
    return make_grammar(
        matcher, compiler.tokenizer(), output_ids, REAL_VOCAB_SIZE, end_tokens_of(sampling, (REAL_EOS,))
    )


def ids_in(bitmask: bytes) -> set[int]:
    bits = int.from_bytes(bitmask, "little")
    return {token_id for token_id in range(8 * len(bitmask)) if bits >> token_id & 1}


def test_a_bitmask_has_the_words_of_the_vocabulary(compiler: GrammarCompiler) -> None:
    compiler.compile(LLMatcher.grammar_from_regex("[ab]+"))
    grammar = real_grammar(compiler, "[ab]+")
    assert len(grammar.bitmask()) == REAL_VOCAB_SIZE // 8
    texts = {compiler.tokenizer().decode_str([token_id]) for token_id in ids_in(grammar.bitmask())}
    assert {"a", "b"} <= texts
    assert all(set(text) <= set("ab") for text in texts)


def test_end_tokens_come_where_the_grammar_accepts_and_no_other_ends(compiler: GrammarCompiler) -> None:
    compiler.tokenizer()
    stop_id = compiler.tokenizer().tokenize_str("z")[0]
    for params, ends in (
        ({}, {REAL_EOS}),
        ({"stop_token_ids": (stop_id,)}, {REAL_EOS, stop_id}),
        ({"ignore_eos": True}, set()),
        ({"ignore_eos": True, "stop_token_ids": (stop_id,)}, {stop_id}),
    ):
        assert not ids_in(real_grammar(compiler, "a{2,9}", "a", **params).bitmask()) & {REAL_EOS, stop_id}
        accepting = real_grammar(compiler, "a{2,9}", "aa", **params).bitmask()
        assert ids_in(accepting) & {REAL_EOS, stop_id} == ends


def test_draft_tokens_are_looked_through_and_forgotten(compiler: GrammarCompiler) -> None:
    a, b = (compiler.tokenizer().tokenize_str(letter)[0] for letter in "ab")
    grammar = real_grammar(compiler, "[ax][by][ax][by]")
    before = grammar.bitmask()
    assert b in ids_in(grammar.bitmask([a]))
    assert a in ids_in(grammar.bitmask([a, b]))
    assert ids_in(grammar.bitmask([b])) == set()
    assert ids_in(grammar.bitmask([a, b, a, b])) == {REAL_EOS}
    assert grammar.bitmask() == before
    assert grammar.error is None


def test_a_complete_grammar_ends_the_request(compiler: GrammarCompiler) -> None:
    a, b = (compiler.tokenizer().tokenize_str(letter)[0] for letter in "ab")
    grammar = real_grammar(compiler, "ab")
    assert grammar.accept(a) is None
    assert not grammar.is_complete
    assert grammar.accept(b) == Ending("stop")
    assert grammar.is_complete


def test_what_is_no_beginning_cannot_be_continued(compiler: GrammarCompiler) -> None:
    with pytest.raises(Exception, match="the grammar cannot be continued"):
        real_grammar(compiler, "ab", "ba")
    ending = real_grammar(compiler, "ab").accept(compiler.tokenizer().tokenize_str("b")[0])
    assert ending is not None
    assert ending.error is not None
    assert ending.error.status == 400


def test_what_must_come_is_forced_in_the_longest_tokens(compiler: GrammarCompiler) -> None:
    grammar = real_grammar(compiler, '\\{"name": (true|false)\\}')
    tokenizer = compiler.tokenizer()
    forced = list(grammar.forced_ids(99))
    assert '{"name": '.startswith(tokenizer.decode_str(forced))
    assert len(tokenizer.decode_str(forced)) >= len('{"name":')
    assert list(grammar.forced_ids(2)) == forced[:2]
    for token_id in tokenizer.tokenize_str('{"name": true'):
        assert grammar.accept(token_id) is None
    assert list(grammar.forced_ids(99)) == tokenizer.tokenize_str("}")
    assert grammar.forced_ids(0) == array("i")


LONG_TEXT = 'start: a{100} b\na: "' + "to be or not " * 700 + '"\nb: "c"'


def test_a_long_text_that_must_come_is_looked_at_a_few_tokens_ahead(compiler: GrammarCompiler) -> None:
    """With llguidance's own forcing the text is looked through at once, and kept: 900 KB and 180 MB here."""
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    matcher = compiler.compile(LONG_TEXT)
    grammar = RequestGrammar(matcher, compiler.tokenizer(), REAL_VOCAB_SIZE, (REAL_EOS,))
    assert ids_in(grammar.bitmask())
    assert len(grammar.forced_ids(10**6)) == MAX_FORCED
    assert matcher.compute_ff_tokens() == []
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < 50_000


def same_masks(compiler: GrammarCompiler, matcher: LLMatcher, vocab_size: int, num_tokens: int) -> list[set[int]]:
    """Follows random tokens; returns the bitmasks, after asserting that they are those of `compute_bitmask`."""
    tokenizer, twin, rng = compiler.tokenizer(), matcher.deep_copy(), Random(num_tokens)
    grammar = RequestGrammar(matcher, tokenizer, vocab_size, tokenizer.eos_tokens)
    expected: list[bytes] = []
    made: list[bytes] = []
    while len(made) < num_tokens:
        expected.append(twin.compute_bitmask()[: 4 * -(-vocab_size // 32)])
        made.append(grammar.bitmask())
        allowed = sorted(ids_in(made[-1]) - set(tokenizer.eos_tokens))
        if not allowed:
            break
        token_id = rng.choice(allowed)
        grammar.accept(token_id)
        assert twin.consume_token(token_id)
    assert made == expected
    return [ids_in(bitmask) for bitmask in made]


OBJECT = LLMatcher.grammar_from_json_schema({"type": "object", "properties": {"a": {"type": "integer"}}})


@pytest.mark.parametrize("text", [OBJECT, LLMatcher.grammar_from_regex("[a-f]*"), 'start: "ab" | "c" start'])
@pytest.mark.parametrize("vocab_size", [REAL_VOCAB_SIZE, REAL_VOCAB_SIZE - 40, REAL_VOCAB_SIZE + 50])
def test_bitmasks_are_those_of_llguidance(text: str, vocab_size: int) -> None:
    compiler = compiler_of(vocab_size)
    masks = same_masks(compiler, compiler.compile(text), vocab_size, 12)
    assert len(masks) > 1
    assert all(masks)


def test_bitmasks_of_a_grammar_that_ended_and_of_one_that_allows_nothing(compiler: GrammarCompiler) -> None:
    ended = compiler.compile(LLMatcher.grammar_from_regex("ab"))
    assert same_masks(compiler, ended, REAL_VOCAB_SIZE, 9)[-1] == {REAL_EOS}
    assert ended.is_stopped()
    endless = LLMatcher(compiler.tokenizer(), LLMatcher.grammar_from_json_schema({"$ref": "#"}), log_level=0)
    assert same_masks(compiler, endless, REAL_VOCAB_SIZE, 9) == [{REAL_EOS}]
    assert endless.get_error().startswith("NoExtension")
    grammar = RequestGrammar(endless, compiler.tokenizer(), REAL_VOCAB_SIZE, ())
    assert ids_in(grammar.bitmask()) == set()


def test_a_buffer_of_another_size_is_refused(compiler: GrammarCompiler) -> None:
    matcher = compiler.compile(LLMatcher.grammar_from_regex("ab"))
    with pytest.raises(ValueError, match="buffer size"):
        RequestGrammar(matcher, SimulatedTokenizer(REAL_VOCAB_SIZE), REAL_VOCAB_SIZE, ()).bitmask()


def test_bitmasks_are_right_while_requests_end_and_others_compile(compiler: GrammarCompiler) -> None:
    texts = [LLMatcher.grammar_from_regex(f"[a-f]{{{count},99}}x") for count in range(1, 60)]
    with ThreadPoolExecutor(1) as background:
        compiled = background.map(compiler.compile, texts)
        living: deque[tuple[bytes, RequestGrammar]] = deque(maxlen=3)
        for matcher in compiled:
            expected = matcher.deep_copy().compute_bitmask()[: REAL_VOCAB_SIZE // 8]
            living.append((expected, RequestGrammar(matcher, compiler.tokenizer(), REAL_VOCAB_SIZE, (REAL_EOS,))))
            assert all(grammar.bitmask() == expected for expected, grammar in living)


class NoDrafts:
    def propose(self, req: Req, max_tokens: int) -> Draft:
        return NO_DRAFT


def test_no_id_is_forced_that_the_model_does_not_have() -> None:
    compiler = compiler_of(REAL_VOCAB_SIZE)
    (last,) = compiler.tokenizer().tokenize_str("z")
    for vocab_size, forced in ((last + 1, [last]), (last, [])):
        matcher = compiler.compile('start: "z"')
        grammar = RequestGrammar(matcher, compiler.tokenizer(), vocab_size, (REAL_EOS,))
        assert list(grammar.forced_ids(9)) == forced


def test_the_output_is_what_the_grammar_allows() -> None:
    bench = Bench()
    for uid in range(1, 6):
        bench.send(user_msg(uid, [uid, 2, 3], max_tokens=30, temperature=1.0, seed=uid, grammar=grammar_of(9, uid)))
    bench.run()
    for uid in range(1, 6):
        params, output = SamplingParams(30, grammar=grammar_of(9, uid)), bench.output(uid)
        for place, token_id in enumerate(output):
            allowed = allowed_next(params, output[:place], (EOS,), VOCAB_SIZE)
            assert allowed is not None
            assert token_id in allowed
        assert bench.end(uid).finish_reason == "stop"
        assert bench.end(uid).ended_by_token == (output[-1] == EOS)


def test_forced_tokens_come_in_fewer_steps_and_change_nothing() -> None:
    outputs: list[list[list[int]]] = []
    num_steps: list[float] = []
    for drafter in (None, NoDrafts()):
        bench = Bench(drafter=drafter)
        for uid in range(1, 6):
            grammar = grammar_of(24, FORCING)
            bench.send(user_msg(uid, [uid, 2, 3], max_tokens=20, temperature=1.0, seed=uid, grammar=grammar))
        bench.run()
        outputs.append([bench.output(uid) for uid in range(1, 6)])
        num_steps.append(bench.scheduler.gauges()["steps"])
    assert outputs[0] == outputs[1]
    assert num_steps[1] < num_steps[0]


def test_complete_goes_before_a_length_that_is_reached_with_it() -> None:
    bench = Bench()
    bench.send(user_msg(1, [1], max_tokens=4, grammar=grammar_of(4), ignore_eos=True))
    bench.send(user_msg(2, [1], max_tokens=3, grammar=grammar_of(4), ignore_eos=True))
    bench.run()
    assert (bench.end(1).finish_reason, len(bench.output(1))) == ("stop", 4)
    assert (bench.end(2).finish_reason, len(bench.output(2))) == ("length", 3)


def test_min_tokens_keep_the_end_away_and_a_complete_grammar_ends_before_them() -> None:
    bench = Bench()
    bench.send(user_msg(1, [1], max_tokens=30, min_tokens=20, grammar=grammar_of(9)))
    bench.run()
    assert (bench.end(1).finish_reason, len(bench.output(1))) == ("stop", 9)


def compiling_bench() -> Bench:
    """Returns a bench whose request 1 waits for its grammar, which is bad, and whose request 2 has none."""
    bench = Bench()
    bench.send(user_msg(1, [1, 2], max_tokens=4, grammar=Grammar("llguidance", "bad", "response_format")))
    bench.send(user_msg(2, [1, 3], max_tokens=4))
    assert bench.gauge("waiting") == 2
    return bench


def test_a_request_that_compiles_keeps_no_one_waiting() -> None:
    bench = compiling_bench()
    assert list(bench.step()) == [2]
    bench.run()
    assert bench.end(1).error == ErrorInfo(400, "the grammar is bad")
    assert len(bench.output(2)) == 4


def test_a_request_that_compiles_can_be_aborted_and_comes_back_no_more() -> None:
    bench = compiling_bench()
    bench.send(AbortMsg(1, 0))
    assert bench.end(1).finish_reason == "abort"
    bench.run()
    while bench.grammars.compiling:
        assert bench.scheduler.schedule() is None
    bench.check_idle()


def test_a_continuation_that_is_complete_ends_without_a_step() -> None:
    bench = Bench()
    bench.send(user_msg(1, [1], max_tokens=30, grammar=grammar_of(6), ignore_eos=True))
    bench.run()
    output, num_steps = bench.output(1), bench.gauge("steps")
    message = user_msg(2, [1], max_tokens=30, output_ids=output, grammar=grammar_of(6), ignore_eos=True)
    bench.send(message)
    bench.run()
    assert bench.end(2).finish_reason == "stop"
    assert bench.gauge("steps") == num_steps


def test_bans_that_leave_nothing_end_the_request_alone() -> None:
    bench = Bench()
    allowed = allowed_next(SamplingParams(9, grammar=grammar_of(6)), [], (EOS,), VOCAB_SIZE)
    assert allowed is not None
    bans = {"bias_ids": pack_int32(sorted(allowed)), "bias_values": pack_float32([-1e30]) * len(allowed)}
    bans["bad_word_ids"] = tuple(pack_int32([token_id]) for token_id in allowed)
    bench.send(user_msg(1, [1], max_tokens=9, grammar=grammar_of(6), **bans))
    bench.send(user_msg(2, [1], max_tokens=9, grammar=grammar_of(6)))
    bench.run()
    error = bench.end(1).error
    assert error is not None
    assert "none of the tokens that the grammar allows" in error.message
    assert bench.end(2).error is None


def test_a_scheduler_without_compiler_refuses_grammars() -> None:
    bench = Bench()
    bench.scheduler = Scheduler(bench.cache, bench.limits, bench.scheduler._policy.budget)
    bench.send(user_msg(1, [1], grammar=grammar_of(3)))
    error = bench.end(1).error
    assert error is not None
    assert error.status == 400


def test_steps_without_grammars_have_no_bitmasks() -> None:
    bench = Bench()
    bench.send(user_msg(1, [1], max_tokens=6, grammar=grammar_of(2), ignore_eos=True), user_msg(2, [2], max_tokens=9))
    bench.run()
    processing = [batch.logits_processing for batch in bench.runner.batches]
    assert any(each is not None and each.bitmask_rows for each in processing)
    assert processing[-1] is None
