"""Spans through both halves: the tokens are those of transformers' model with the same rows in its embeddings."""

import gc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from messages.columns import unpack_int32
from messages.ring.requests import SamplingParams
from messages.ring.spans import DIGEST_BYTES, PromptSpan
from messages.ring.steps import Batch
from scheduler_proc import offline
from scheduler_proc.computing.load_runner import load_runner
from scheduler_proc.computing.tiers.tiered_pages import TieredPages
from scheduler_proc.deciding.pages.page_tiers import PageTiers
from scheduler_proc.offline import OfflineEngine, Output
from tests.checkpoints import build_checkpoint, make_config
from tests.scheduler_proc.computing.backends.cuda.late_device import LateDevice, late_backend
from tests.scheduler_proc.computing.kv_cache.test_kv_memory import wait_until_free

PLACEHOLDER, HIDDEN_SIZE, NUM_TOKENS = 7, 64, 12
VARIANTS = ["llama-gqa-tied", "gemma3", "mistral-window", "lfm2"]

Model = Any
"""A causal language model of transformers."""


def rows_of(content: int, length: int) -> torch.Tensor:
    return torch.randn((length, HIDDEN_SIZE), generator=torch.Generator().manual_seed(content))


def span_of(start: int, length: int, content: int) -> PromptSpan:
    return PromptSpan(start, length, bytes([content, length]) * (DIGEST_BYTES // 2))


class Prompt:
    """Token ids with placeholders, and which rows these have: (start, length, content)."""

    def __init__(self, num_tokens: int, *places: tuple[int, int, int]):
        self.ids = [(11 * position + 3) % 300 for position in range(num_tokens)]
        self.places = places
        for start, length, _ in places:
            self.ids[start : start + length] = [PLACEHOLDER] * length

    @property
    def spans(self) -> tuple[PromptSpan, ...]:
        return tuple(span_of(*place) for place in self.places)

    def expect(self, model: Model) -> list[int]:
        """Returns the tokens of transformers' model, whose own scaling of embeddings the rows do not get."""
        embeddings = model.get_input_embeddings()
        with torch.inference_mode():
            inputs_TE = embeddings(torch.tensor(self.ids))
            for start, length, content in self.places:
                inputs_TE[start : start + length] = rows_of(content, length)
            output: list[int] = []
            while len(output) < NUM_TOKENS:
                output.append(int(model(inputs_embeds=inputs_TE[None], use_cache=False).logits[0, -1].argmax()))
                inputs_TE = torch.cat([inputs_TE, embeddings(torch.tensor(output[-1:]))])
        return output


PROMPTS = [
    Prompt(45, (10, 9, 1)),
    Prompt(45, (10, 9, 2)),
    Prompt(45, (10, 9, 1), (30, 1, 3)),
    Prompt(45, (0, 1, 4), (15, 2, 5), (17, 20, 6)),
    Prompt(33, (10, 23, 7)),
    Prompt(33),
]


@pytest.fixture(scope="module", params=VARIANTS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[int]]]:
    """A checkpoint, and what its model answers to each prompt."""
    path = tmp_path_factory.mktemp("model")
    reference = build_checkpoint(path, request.param)
    expected = [prompt.expect(reference) for prompt in PROMPTS]
    assert len({str(output) for output in expected}) >= 5, "the rows change nothing"
    return path, expected


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[int]]]:
    path = tmp_path_factory.mktemp("llama")
    reference = build_checkpoint(path, "llama-gqa-tied")
    return path, [prompt.expect(reference) for prompt in PROMPTS]


def serve(engine: OfflineEngine, prompts: Sequence[Prompt]) -> list[Output]:
    """Returns the outputs of the prompts, which run together."""
    for prompt in prompts:
        for span, (_, length, content) in zip(prompt.spans, prompt.places, strict=True):
            engine._runner.span_rows.place(span.digest, rows_of(content, length))
    return generate(engine, prompts)


def generate(engine: OfflineEngine, prompts: Sequence[Prompt]) -> list[Output]:
    params = [SamplingParams(NUM_TOKENS, temperature=0.0, ignore_eos=True)] * len(prompts)
    spans, scheduler = iter([prompt.spans for prompt in prompts]), engine._scheduler
    with pytest.MonkeyPatch.context() as patch:
        receive = scheduler.receive
        patch.setattr(scheduler, "receive", lambda message: receive(replace(message, spans=next(spans))))
        return engine.generate([prompt.ids for prompt in prompts], params)


def tokens_of(outputs: list[Output]) -> list[list[int]]:
    assert all(output.error is None for output in outputs), outputs
    return [output.token_ids for output in outputs]


WAYS: dict[str, dict[str, Any]] = {
    "together": {},
    "in chunks of 7": {"max_num_batched_tokens": 7, "max_num_seqs": 1},
    "preempted": {"num_pages": 25, "block_size": 4, "max_model_len": 64},
    "drafts": {"speculative": "ngram"},
}


@pytest.mark.parametrize("way", WAYS)
def test_the_tokens_are_those_of_replaced_embeddings(model: tuple[Path, list[list[int]]], way: str) -> None:
    path, expected = model
    engine = OfflineEngine(make_config(path, **WAYS[way]))
    assert tokens_of(serve(engine, PROMPTS)) == expected
    assert tokens_of(serve(engine, PROMPTS)) == expected, "from the cache"
    if way == "preempted":
        assert engine.gauges["preemptions"] > 0
    assert engine.gauges["requests"] == engine.gauges["pages_in_use"] == 0


def test_steps_on_a_stand_in_for_a_gpu_give_the_same_tokens(llama: tuple[Path, list[list[int]]]) -> None:
    """Steps without spans are captured, and steps overlap."""
    path, expected = llama
    device = LateDevice()
    with late_backend(lambda: device):
        engine = OfflineEngine(make_config(path, max_num_seqs=4, max_num_batched_tokens=32))
    assert tokens_of(serve(engine, PROMPTS)) == expected
    assert device.num_replays > 0
    assert engine.gauges["steps_ahead"] > 0


def test_equal_digests_are_cached_and_others_are_not(llama: tuple[Path, list[list[int]]]) -> None:
    path, expected = llama
    engine = OfflineEngine(make_config(path, block_size=4))
    counts: list[int] = []
    for index in (0, 0, 1, 2, 0, 5):
        (output,) = serve(engine, [PROMPTS[index]])
        assert output.token_ids == expected[index]
        counts.append(output.usage.cached_tokens)
    assert counts == [0, 44, 8, 28, 44, 8]


def test_a_successor_and_a_lower_tier_have_the_pages_of_spans(
    llama: tuple[Path, list[list[int]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, expected = llama
    kv_file = tmp_path / "kv"
    kv_file.touch()
    monkeypatch.setattr(offline, "load_runner", lambda config, report: load_runner(config, report, kv_file))
    monkeypatch.setattr(TieredPages, "estimate_s", lambda self, digests: 0.0)
    monkeypatch.setattr(PageTiers, "_page_compute_s", 1e9)
    flags = {"block_size": 4, "kv_disk_gb": 0.01}
    engine = OfflineEngine(make_config(path, **flags))
    assert tokens_of(serve(engine, PROMPTS[:1])) == expected[:1]
    engine.close()
    del engine
    gc.unfreeze()
    wait_until_free(kv_file)
    successor = OfflineEngine(make_config(path, **flags))
    assert successor._scheduler.gauges()["pages_recovered"] > 0
    for index, num_cached in ((1, 8), (0, 44)):
        (output,) = serve(successor, [PROMPTS[index]])
        assert (output.token_ids, output.usage.cached_tokens) == (expected[index], num_cached)
    successor.close()


def test_only_steps_with_tokens_of_spans_have_the_column(
    llama: tuple[Path, list[list[int]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, expected = llama
    engine = OfflineEngine(make_config(path, max_num_batched_tokens=16, max_num_seqs=1))
    batches: list[Batch] = []
    passes = engine._runner.forward_passes
    prepare = passes.prepare
    monkeypatch.setattr(passes, "prepare", lambda batch, columns: (batches.append(batch), prepare(batch, columns))[1])
    assert tokens_of(serve(engine, [PROMPTS[2]])) == expected[2:3]
    placed = [unpack_int32(batch.placed_rows) for batch in batches]
    assert [sum(row >= 0 for row in rows) for rows in placed[:3]] == [6, 4, 0]
    assert [len(rows) for rows in placed] == [16, 16, *[0] * (len(placed) - 2)]


def test_missing_rows_and_a_model_without_any(llama: tuple[Path, list[list[int]]], tmp_path: Path) -> None:
    engine = OfflineEngine(make_config(llama[0]))
    (output,) = generate(engine, PROMPTS[:1])
    assert output.error is not None
    assert "no rows for span 0, which needs 9" in output.error.message
    build_checkpoint(tmp_path, "gpt2")
    (output,) = generate(OfflineEngine(make_config(tmp_path)), PROMPTS[:1])
    assert output.error is not None
    assert "takes no spans" in output.error.message
