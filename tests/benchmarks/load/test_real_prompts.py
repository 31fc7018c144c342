"""Real text is cut to tokens, comes in a seeded order, and few-shot prefixes stay the same in every prompt."""

import gzip
import itertools
import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from benchmarks.load.server_facts import ServerFacts
from benchmarks.load.workloads import SOURCES, SPARE_TOKENS, LengthRange, Lengths, TextCutter, text_prompts
from messages.errors import UsageError

LENGTHS = Lengths(LengthRange(30, 80), LengthRange(4, 8))
NO_TOKENIZER = TextCutter(ServerFacts("m", 2048, 512))


@pytest.fixture(scope="module")
def tokenizer_dir(shared_dir: Path) -> Path:
    return shared_dir / "models" / "tinystories-656k-llama"


def test_text_is_cut_with_the_tokenizer_of_the_server(tokenizer_dir: Path) -> None:
    cutter = TextCutter(ServerFacts("m", 2048, 512, tokenizer_dir))
    tokenizer = Tokenizer.from_file(str(tokenizer_dir / "tokenizer.json"))
    text = "Once upon a time there was a little girl who liked to play in the park. " * 4
    for num_tokens in (1, 7, 40):
        cut = cutter.cut(text, num_tokens)
        assert text.startswith(cut)
        assert num_tokens - 2 <= len(tokenizer.encode(cut, add_special_tokens=False)) <= num_tokens
    assert cutter.cut(text, 10_000) == text


def test_without_a_tokenizer_a_byte_counts_as_a_token() -> None:
    assert NO_TOKENIZER.cut("abcé", 4) == "abc"
    assert NO_TOKENIZER.cut("abcé", 5) == "abcé"


@pytest.mark.parametrize("source", SOURCES)
def test_real_prompts_fit_and_are_the_same_for_the_same_seed(
    shared_dir: Path, tokenizer_dir: Path, source: str
) -> None:
    cutter = TextCutter(ServerFacts("m", 2048, 512, tokenizer_dir))
    tokenizer = Tokenizer.from_file(str(tokenizer_dir / "tokenizer.json"))

    def first(seed: int) -> list[str]:
        requests = list(itertools.islice(text_prompts(source, shared_dir / "prompts", cutter, LENGTHS, seed), 40))
        assert all(4 <= request.max_tokens <= 8 for request in requests)
        assert all(isinstance(request.prompt, str) for request in requests)
        return [str(request.prompt) for request in requests]

    prompts = first(seed=0)
    assert prompts == first(seed=0)
    assert prompts != first(seed=1)
    assert len(set(prompts)) >= 39
    assert all(1 <= len(tokenizer.encode(prompt).ids) <= 80 + SPARE_TOKENS for prompt in prompts)


def test_few_shot_prompts_share_the_examples_of_their_task(shared_dir: Path, tokenizer_dir: Path) -> None:
    cutter = TextCutter(ServerFacts("m", 2048, 512, tokenizer_dir))
    lengths = Lengths(LengthRange(1, 400), LengthRange(1, 1))
    requests = list(
        itertools.islice(text_prompts("big-bench-hard", shared_dir / "prompts", cutter, lengths, 0), 2 * 27)
    )
    for one, again in zip(requests[:27], requests[27:], strict=True):
        prefix, _, question = str(one.prompt).rpartition("\n\nQ: ")
        assert str(again.prompt).startswith(prefix)
        assert len(prefix) > 2 * len(question) / 3
        assert not str(again.prompt).endswith(question)
        assert "canary" not in prefix
    assert len({str(request.prompt)[:40] for request in requests}) >= 20


def test_all_questions_come_before_one_comes_again(tmp_path: Path) -> None:
    folder = tmp_path / "humaneval"
    folder.mkdir()
    lines = "\n".join(json.dumps({"prompt": f"def f{index}():"}) for index in range(10))
    (folder / "HumanEval.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    requests = text_prompts("humaneval", tmp_path, NO_TOKENIZER, LENGTHS, seed=0)
    for _ in range(2):
        assert {str(request.prompt) for request in itertools.islice(requests, 10)} == {
            f"def f{index}():" for index in range(10)
        }


def test_prompts_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--prompts-dir"):
        text_prompts("gsm8k", tmp_path, NO_TOKENIZER, LENGTHS, 0)
