"""Models with windows against transformers in float32, with few window pages: chunks, hits, preemption, drafts."""

import random
from pathlib import Path
from typing import Any

import pytest
import transformers

from messages.errors import BootError
from messages.ring.requests import SamplingParams
from scheduler_proc.computing.load_runner import load_runner
from scheduler_proc.offline import OfflineEngine
from tests.checkpoints import VOCAB_SIZE, build_checkpoint, make_config
from tests.scheduler_proc.computing.backends.cuda.late_device import LateDevice, late_backend
from tests.scheduler_proc.computing.reference import assert_greedy

chooser = random.Random(7)
PREFIX = [chooser.randrange(VOCAB_SIZE) for _ in range(70)]
PROMPTS = [PREFIX[:length] + [chooser.randrange(VOCAB_SIZE) for _ in range(3)] for length in range(0, 70, 8)]
PROMPTS += [[chooser.randrange(VOCAB_SIZE) for _ in range(5)] for _ in range(5)]

FLAGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "chunks of 7": {"max_num_batched_tokens": 7, "block_size": 4},
    "pages of 32": {"block_size": 32, "num_pages": 12},
    "few pages": {"block_size": 4, "num_pages": 26, "max_num_batched_tokens": 16},
    "one row": {"max_num_seqs": 1, "block_size": 4, "num_pages": 24},
    "no cache": {"enable_prefix_caching": False, "block_size": 4, "num_pages": 40},
    "n-grams": {"speculative": "ngram", "block_size": 4, "num_pages": 48},
}
RISKY = ("chunks of 7", "few pages", "n-grams")
OURS = {
    "gemma3": tuple(FLAGS),
    "gemma4-shared-kv": (*RISKY, "plain"),
    "gpt-oss": (*RISKY, "no cache"),
    "mistral-window": (*RISKY, "pages of 32"),
}
"""Variants, and the flags that they are served with.

One layer of three is global; some have K and V of others, and other heads; half of the layers are; none is.
"""


@pytest.fixture(scope="module", params=OURS)
def built(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, "transformers.PreTrainedModel"]:
    path = tmp_path_factory.mktemp(request.param)
    return path, build_checkpoint(path, request.param)


def generate_twice(
    engine: OfflineEngine, model: "transformers.PreTrainedModel", what: str, prompts: list[list[int]] = PROMPTS
) -> list[int]:
    """Checks the outputs of all prompts, twice, as the second ones find the cache full; returns their cached tokens."""
    params = [SamplingParams(22, temperature=0.0, ignore_eos=True)] * len(prompts)
    outputs = engine.generate(prompts, params)
    again = engine.generate(prompts, params)
    for prompt, *found in zip(prompts, outputs, again, strict=True):
        for output in found:
            assert len(output.token_ids) == 22
            assert_greedy(model, prompt, output.token_ids, f"{what}, prompt of {len(prompt)}")
    assert (engine.gauges["pages_in_use"], engine.gauges["window_pages_in_use"]) == (0, 0)
    engine._scheduler.check()
    return [output.usage.cached_tokens for output in again]


@pytest.mark.parametrize(("built", "case"), [(name, case) for name in OURS for case in OURS[name]], indirect=["built"])
def test_tokens_are_those_of_transformers(built: tuple[Path, "transformers.PreTrainedModel"], case: str) -> None:
    path, model = built
    engine = OfflineEngine(make_config(path, **{"max_num_seqs": 6} | FLAGS[case]))
    prompts = PROMPTS[1::4] if case == "one row" else PROMPTS
    cached = generate_twice(engine, model, f"{path.name}, {case}", prompts)
    if case == "few pages":
        assert engine.gauges["preemptions"] > 0
    if case == "plain":
        assert cached == [len(prompt) // 16 * 16 for prompt in PROMPTS]


def test_a_step_in_flight_changes_no_token(built: tuple[Path, "transformers.PreTrainedModel"]) -> None:
    path, model = built
    with late_backend(LateDevice):
        engine = OfflineEngine(make_config(path, max_num_seqs=4, max_num_batched_tokens=32, block_size=4, num_pages=36))
    generate_twice(engine, model, f"{path.name}, in flight")
    assert engine.gauges["steps_ahead"] > 0


def test_a_draft_model_with_windows_holds_everything(built: tuple[Path, "transformers.PreTrainedModel"]) -> None:
    path, model = built
    engine = OfflineEngine(make_config(path, draft_model=path, max_num_seqs=4, block_size=4))
    generate_twice(engine, model, f"{path.name}, draft model")
    assert engine.gauges["draft_tokens"] > 0


def test_contexts_within_the_window_have_no_window_pages(tmp_path: Path) -> None:
    build_checkpoint(tmp_path, "gemma3", sliding_window=80)
    assert load_runner(make_config(tmp_path), lambda text, fraction: None).windows is None
    assert load_runner(make_config(tmp_path, block_size=4), lambda text, fraction: None).windows == (80, 224)


def test_lower_tiers_are_refused(tmp_path: Path) -> None:
    build_checkpoint(tmp_path, "gemma3")
    with pytest.raises(BootError, match="layers with a window"):
        load_runner(make_config(tmp_path, kv_disk=str(tmp_path)), lambda text, fraction: None)
