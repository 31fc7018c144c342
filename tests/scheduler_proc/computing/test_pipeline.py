"""Tokens of an engine of several stages against those of one process in float32; what each stage holds."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest

from messages.config.images import VisionFacts
from messages.config.pooling import PoolingFacts
from messages.config.server import Config, ModelConfig
from messages.errors import BootError
from scheduler_proc.computing.backends.cpu import cores
from scheduler_proc.computing.backends.cpu.backend import CpuBackend
from scheduler_proc.computing.backends.cpu.forward_passes import CpuForwardPasses
from scheduler_proc.computing.load_runner import load_runner
from scheduler_proc.computing.loading import memory_needs
from scheduler_proc.computing.loading.checkpoint import Checkpoint
from scheduler_proc.computing.loading.roles import find_configs
from scheduler_proc.computing.loading.sources.tensor_file import StoredTensor
from scheduler_proc.computing.model.blocks.embedding import TOKENS
from scheduler_proc.computing.model.decoder import DescribedDecoder
from scheduler_proc.computing.model.stages import model_parameters
from scheduler_proc.computing.pipeline import StagePlace, find_place
from scheduler_proc.computing.runner import Runner
from scheduler_proc.deciding_half import make_scheduler
from scheduler_proc.step_times import StepTimes
from scheduler_proc.stepper import Stepper
from supervisor.model.facts import read_model_facts
from tests.checkpoints import build_checkpoint, make_config
from tests.scheduler_proc.clients import Inbox, user_msg
from tests.scheduler_proc.computing.drive import generate
from tests.scheduler_proc.computing.ranks import no_report, ranks_of, sent_sizes
from tests.scheduler_proc.computing.test_ranks import PARAMS, PROMPTS, SCHEDULE, decoder_of

STAGED: list[tuple[str, dict[str, Any], int, int, dict[str, Any]]] = [
    ("llama-gqa-tied", {}, 2, 1, {}),
    ("gpt2", {"n_layer": 3, "vocab_size": 301}, 3, 1, {}),
    ("gpt2-untied", {"n_head": 4}, 2, 2, {"dtype": "bfloat16"}),
    ("llama-gqa-tied", {"num_hidden_layers": 4}, 4, 1, {"dtype": "bfloat16"}),
    ("llama-gqa-tied", {}, 2, 1, {"quantization": "int8"}),
    ("qwen3-gqa-tied", {}, 2, 2, {"kv_cache_dtype": "int8"}),
    ("gemma3", {}, 4, 1, {}),
    ("gemma4-shared-kv", {}, 2, 1, {}),
    ("gemma4-experts", {}, 2, 1, {}),
    ("qwen3_5", {}, 3, 1, {}),
    ("granite4-h", {}, 2, 1, {"dtype": "bfloat16"}),
    ("lfm2", {}, 4, 1, {}),
    ("mamba2", {}, 2, 1, {}),
    ("nemotron-h-experts", {}, 2, 1, {}),
    ("gpt-oss", {}, 2, 1, {}),
    ("qwen3moe", {}, 2, 1, {"quantization": "int8"}),
    ("deepseek-v3", {}, 2, 1, {}),
    ("cohere2-biases-untied", {}, 2, 1, {}),
]
"""Variant, changed fields of config.json, stages, ranks in each, and flags."""


NUMBERS_BYTES = 40
"""The numbers that ranks compare as they load take less."""


def read_hop_size(path: Path) -> int:
    return read_model_facts(ModelConfig(model=str(path)), path, path, "m").hop_size


@pytest.fixture(autouse=True)
def many_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "allowed_cpus", lambda: frozenset(range(8)))


def passes_of(runner: Runner) -> CpuForwardPasses:
    assert isinstance(runner.forward_passes, CpuForwardPasses)
    return runner.forward_passes


def described(runner: Runner) -> DescribedDecoder:
    decoder = decoder_of(runner)
    assert isinstance(decoder, DescribedDecoder)
    return decoder


@pytest.mark.parametrize(("variant", "overrides", "num_stages", "num_ranks", "flags"), STAGED)
def test_several_stages_give_the_tokens_of_one_process(
    tmp_path: Path, variant: str, overrides: dict[str, Any], num_stages: int, num_ranks: int, flags: dict[str, Any]
) -> None:
    """Prefill in chunks with decode rows; drawn and processed rows. Steps of decode rows are replayed in each stage."""
    build_checkpoint(tmp_path, variant, **overrides)
    prompts = [[token % 300 for token in prompt] for prompt in PROMPTS]
    alone = load_runner(make_config(tmp_path, **flags), no_report)
    expected = generate(alone, prompts, 6, SCHEDULE, PARAMS)
    with ranks_of(tmp_path, num_ranks, tmp_path / "ranks", num_stages, **flags) as runners:
        assert generate(runners[0], prompts, 6, SCHEDULE, PARAMS) == expected
        captured = [set(passes_of(runner).captures) for runner in runners]
        assert all(one == captured[0] for one in captured)
        assert captured[0] or "quantization" not in flags
        assert len(captured[0]) == len(passes_of(alone).captures) * (num_ranks == 1)
        assert {runner.num_pages for runner in runners} == {alone.num_pages}


@pytest.mark.parametrize(
    ("variant", "overrides", "num_stages", "num_remote_stages", "flags"),
    [
        ("llama-gqa-tied", {}, 2, 1, {}),
        ("llama-gqa-tied", {"num_hidden_layers": 4}, 4, 2, {"dtype": "bfloat16"}),
        ("gemma4-shared-kv", {}, 2, 1, {}),
        ("qwen3_5", {}, 3, 2, {}),
    ],
)
def test_stages_on_other_machines_give_the_tokens_of_one_process(
    tmp_path: Path,
    variant: str,
    overrides: dict[str, Any],
    num_stages: int,
    num_remote_stages: int,
    flags: dict[str, Any],
) -> None:
    """A token takes the numbers that the launcher expects, which bounds a message between machines."""
    build_checkpoint(tmp_path, variant, **overrides)
    prompts = [[token % 300 for token in prompt] for prompt in PROMPTS]
    alone = load_runner(make_config(tmp_path, **flags), no_report)
    expected = generate(alone, prompts, 6, SCHEDULE, PARAMS)
    sent_sizes.clear()
    with ranks_of(tmp_path, 1, tmp_path / "ranks", num_stages, num_remote_stages=num_remote_stages, **flags) as runners:
        assert generate(runners[0], prompts, 6, SCHEDULE, PARAMS) == expected
        assert {runner.num_pages for runner in runners} == {alone.num_pages}
        assert not (tmp_path / "ranks").exists()
    token_bytes = read_hop_size(tmp_path) * described(runners[0]).activation_dtype.itemsize
    assert {num_bytes % token_bytes for num_bytes in sent_sizes if num_bytes > NUMBERS_BYTES} == {0}


def test_stages_have_their_own_weights_and_pages(tmp_path: Path) -> None:
    build_checkpoint(tmp_path, "llama-gqa-tied", num_hidden_layers=5)
    alone = load_runner(make_config(tmp_path), no_report)
    whole = decoder_of(alone)
    with ranks_of(tmp_path, 1, tmp_path / "ranks", 2, stages="4,1") as (last, first):
        decoders = described(first), described(last)
        assert [decoder.model.held for decoder in decoders] == [range(4), range(4, 5)]
        assert [decoder.embedding is None for decoder in decoders] == [False, True]
        assert [decoder.head is None for decoder in decoders] == [True, False]
        (tokens,) = (one for one in model_parameters(whole.model) if one.name == TOKENS)
        num_token_bytes = tokens.shape[0] * tokens.shape[1] * 4
        sizes = [decoder.num_weight_bytes for decoder in decoders]
        assert sum(sizes) == whole.num_weight_bytes + num_token_bytes
        assert sizes[0] > 2 * sizes[1]
        assert 5 * passes_of(first).cache.num_bytes == 4 * passes_of(alone).cache.num_bytes
        assert 5 * passes_of(last).cache.num_bytes == passes_of(alone).cache.num_bytes


def test_ranks_are_counted_from_the_schedulers_stage() -> None:
    places = [find_place(number, num_ranks=2, num_stages=3) for number in range(6)]
    assert [place.stage for place in places] == [2, 2, 0, 0, 1, 1]
    assert [place.rank for place in places] == [0, 1] * 3
    assert [place.number_in(place.stage) for place in places] == list(range(6))
    assert StagePlace(1, 3, 1, 2).number_in(2) == 1


@pytest.mark.parametrize(
    ("variant", "num_stages", "stages", "message"),
    [
        ("llama-gqa-tied", 2, "1,1", "--stages 1,1: expected auto, one-stream, or 2 numbers"),
        ("llama-gqa-tied", 2, "many", "--stages many: expected auto"),
        ("llama-gqa-tied", 9, "auto", "--pipeline-parallel 9: the model's 3 layers are 3 stages at most"),
        ("gemma4-shared-kv", 3, "auto", "--pipeline-parallel 3: the model's 7 layers are 2 stages at most"),
        ("gemma4-shared-kv", 2, "4,3", "--stages 4,3: no stage can begin with layer 4, which needs what"),
    ],
)
def test_stages_that_are_impossible_are_refused(
    tmp_path: Path, variant: str, num_stages: int, stages: str, message: str
) -> None:
    build_checkpoint(tmp_path, variant)
    with pytest.raises(BootError, match=message), ranks_of(tmp_path, 1, tmp_path / "ranks", num_stages, stages=stages):
        pass


def test_a_process_by_itself_has_no_other_stages(tmp_path: Path) -> None:
    build_checkpoint(tmp_path, "llama-gqa-tied")
    with pytest.raises(BootError, match="--pipeline-parallel 2: only a server has several ranks"):
        load_runner(make_config(tmp_path, pipeline_parallel=2), no_report)


def serve(config: Config, runner: Runner, prompts: Sequence[Sequence[int]]) -> tuple[list[list[int]], dict[str, float]]:
    """Returns the tokens of the prompts in two turns, and the scheduler's gauges."""
    scheduler, inbox = make_scheduler(config, runner), Inbox()
    stepper = Stepper(scheduler, runner, StepTimes())
    for turn in range(2):
        for index, prompt in enumerate(prompts):
            scheduler.receive(user_msg(10 * turn + index, prompt, 24, temperature=0.9 * (index % 2), seed=index))
        while (batch := stepper.plan()) is not None or stepper.has_step:
            stepper.step(batch, 0.0)
            inbox.take(scheduler.pop_replies())
    return [inbox.tokens[uid, 0] for uid in sorted(uid for uid, _ in inbox.tokens)], scheduler.gauges()


def test_requests_are_cached_preempted_and_drafted_as_in_one_process(tmp_path: Path) -> None:
    """The draft model is the model itself, which the last stage has as a whole."""
    build_checkpoint(tmp_path / "model", "llama-gqa-tied")
    path, flags = tmp_path / "model", {"num_pages": 9, "max_num_seqs": 4, "max_num_batched_tokens": 32}
    prompts = [PROMPTS[2] + PROMPTS[1], PROMPTS[2] + PROMPTS[0], PROMPTS[3]]
    config = make_config(path, **flags)
    expected, _ = serve(config, load_runner(config, no_report), prompts)
    with ranks_of(path, 1, tmp_path / "ranks", 2, **flags) as (leader, _):
        tokens, gauges = serve(config, leader, prompts)
        assert tokens == expected
        assert gauges["preemptions"] > 0
        assert gauges["prefix_hit_tokens"] > 0
    drafting = flags | {"draft_model": path, "num_speculative_tokens": 2}
    with ranks_of(path, 1, tmp_path / "ranks2", 2, **drafting) as (leader, first):
        tokens, gauges = serve(make_config(path, **drafting), leader, prompts)
        assert first.draft_runner is None
        assert tokens == expected
        assert gauges["accepted_tokens"] > 0


def test_chunks_of_a_prompt_are_in_all_stages_at_once(tmp_path: Path) -> None:
    build_checkpoint(tmp_path / "model", "llama-gqa-tied")
    path, flags = tmp_path / "model", {"num_pages": 9, "max_num_batched_tokens": 16}
    with ranks_of(path, 1, tmp_path / "ranks", 2, **flags) as (leader, _):
        scheduler = make_scheduler(make_config(path, **flags), leader)
        stepper = Stepper(scheduler, leader, StepTimes())
        scheduler.receive(user_msg(1, range(3, 43), 2))
        stepper.step(stepper.plan(), 0.0)
        batch = stepper.plan()
        assert batch is not None, "the second chunk waits for the first one"
        while batch is not None or stepper.has_step:
            stepper.step(batch, 0.0)
            batch = stepper.plan()


def test_a_stage_reads_only_its_own_tensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both stages load in threads of this process; the layers in a request show its stage."""
    build_checkpoint(tmp_path, "qwen2-mha-untied", num_hidden_layers=4)
    read, requests = Checkpoint.read, list[set[str]]()

    def record(self: Checkpoint, requested: set[str]) -> Iterator[tuple[str, StoredTensor]]:
        requests.append(requested)
        return read(self, requested)

    monkeypatch.setattr(Checkpoint, "read", record)
    with ranks_of(tmp_path, 1, tmp_path / "ranks", 2, stages="3,1"):
        pass
    first, last = sorted(requests, key=len, reverse=True)
    assert not first & last
    assert {name.split(".")[2] for name in first if ".layers." in name} == {"0", "1", "2"}
    assert {name.split(".")[2] for name in last if ".layers." in name} == {"3"}
    assert "model.embed_tokens.weight" in first
    assert {"model.norm.weight", "lm_head.weight"} <= last


def test_stages_that_do_not_fit_together_are_refused_with_the_numbers_of_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_checkpoint(tmp_path, "llama-gqa-tied")
    monkeypatch.setattr(CpuBackend, "free_bytes", lambda *_: 1 << 20)
    message = r"the stages need 0\.\d\d GiB, and 0\.00 GiB are free.*: scheduler [\d., ]+; rank1 [\d., ]+\. Lower"
    with pytest.raises(BootError, match=message), ranks_of(tmp_path, 1, tmp_path / "ranks", 2):
        pass


def test_a_machine_needs_memory_for_its_own_stages_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine of the first stage needs more than the head does for two."""
    build_checkpoint(tmp_path, "llama-gqa-tied")
    free_bytes = 1 << 30

    def count(config: Config, *_: object, **__: object) -> Any:
        own = 1 << 20 if config.joined_rank else 1 << 18
        return SimpleNamespace(weight_bytes=own, step_bytes=0, sizes=Mock(**{"num_bytes.return_value": 0}))

    monkeypatch.setattr(memory_needs, "count_needs", count)
    monkeypatch.setattr(CpuBackend, "free_bytes", lambda *_: free_bytes)
    free_bytes = 1 << 20
    with ranks_of(tmp_path, 1, tmp_path / "ranks", 3, num_remote_stages=1):
        pass
    free_bytes -= 1
    message = r"are free on the machine that has joined for it.*: rank1 0.00, 0.00, 0.00\. Lower"
    with (
        pytest.raises(BootError, match=message),
        ranks_of(tmp_path, 1, tmp_path / "ranks", 3, num_remote_stages=1),
    ):
        pass


def test_models_that_cannot_have_stages_are_refused_by_name(tmp_path: Path) -> None:
    build_checkpoint(tmp_path, "llama-gqa-tied")
    config, place = make_config(tmp_path), find_place(0, 1, num_stages=2)
    pooling = PoolingFacts(kind="embed", is_encoder=True)
    vision = VisionFacts(family="qwen2_vl", processor=b"{}")
    for facts, message in (({"pooling": pooling}, "an encoder computes"), ({"vision": vision}, "the rows of images")):
        refused = msgspec.structs.replace(config, facts=msgspec.structs.replace(config.facts, **facts))
        assert find_configs(refused)
        with pytest.raises(BootError, match=message):
            find_configs(refused, place)
