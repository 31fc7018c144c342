"""Tokens of an engine of several ranks against those of one rank in float32; what each of them holds."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from messages.columns import pack_float32, pack_int32, unpack_float32, unpack_int32
from messages.errors import BootError
from messages.ring.requests import SamplingParams
from messages.ring.steps import Batch
from scheduler_proc.computing.backends.cpu import cores
from scheduler_proc.computing.backends.cpu.forward_passes import CpuForwardPasses
from scheduler_proc.computing.device import Fetched
from scheduler_proc.computing.load_runner import load_runner
from scheduler_proc.computing.model.attention_description import AttentionDescription
from scheduler_proc.computing.model.decoder import Decoder
from scheduler_proc.computing.parallel import ParallelGroup
from scheduler_proc.computing.runner import Runner
from scheduler_proc.computing.sampling.results import Result
from tests.checkpoints import CONTEXT, build_checkpoint, make_config
from tests.scheduler_proc.computing.backends.cuda.late_device import LateDevice, late_backend
from tests.scheduler_proc.computing.drive import GREEDY, Row, Schedule, generate, plan_batch, run_step
from tests.scheduler_proc.computing.ranks import ranks_of
from tests.scheduler_proc.computing.test_generation import make_prompts

PROMPTS = make_prompts([1, 15, 17, 40, CONTEXT - 9])
SCHEDULE = Schedule(chunk_tokens=24, stagger=1, seed=2)
NUM_TOKENS = 4
PARAMS = [
    GREEDY,
    SamplingParams(8, temperature=0.9, seed=5),
    SamplingParams(8, temperature=0.8, top_p=0.9, top_k=30, seed=6),
    SamplingParams(
        8, temperature=0.0, repetition_penalty=1.3, bias_ids=pack_int32([3]), bias_values=pack_float32([-4.0])
    ),
    GREEDY,
]
WIDE = {"hidden_size": 128, "intermediate_size": 256}
"""Each of two ranks has whole groups of int4's inputs."""


DIVIDED: list[tuple[str, dict[str, Any], int, dict[str, Any]]] = [
    ("gpt2", {"n_head": 4, "vocab_size": 301}, 2, {}),
    ("llama-mqa", {}, 2, {}),
    ("qwen2-mha-untied", {}, 2, {}),
    ("mistral-window", {}, 2, {}),
    ("qwen3_5", {"linear_num_value_heads": 8, "has_tiled_value_heads": True}, 4, {}),
    ("qwen3-next", {}, 2, {}),
    ("qwen3_5", {}, 2, {"quantization": "int8"}),
    ("qwen3-gqa-tied", {}, 2, {"kv_cache_dtype": "int8"}),
    ("qwen3-gqa-tied", {}, 4, {}),
    ("gemma2", {}, 2, {}),
    ("gemma3", {}, 2, {}),
    ("gemma4-shared-kv", {}, 2, {}),
    ("gemma4-one-kv", {}, 2, {"kv_cache_dtype": "int8"}),
    ("gemma4-experts", {}, 2, {}),
    ("olmo2", {}, 4, {}),
    ("olmo3", {}, 2, {"quantization": "int8"}),
    ("cohere2-biases-untied", {}, 2, {}),
    ("exaone4", {}, 2, {}),
    ("phi3-long", {}, 2, {}),
    ("smollm3", {}, 2, {}),
    ("granite", {}, 2, {"quantization": "int8"}),
    ("granite4", {}, 2, {}),
    ("glm4", {}, 4, {}),
    ("ministral3", {}, 2, {"kv_cache_dtype": "int8"}),
    ("llama-mha", {}, 2, {"quantization": "int8"}),
    ("llama-gqa-tied", WIDE, 2, {"quantization": "int4"}),
    ("mixtral", {}, 2, {}),
    ("qwen2moe", {}, 2, {}),
    ("qwen3moe", {}, 4, {}),
    ("qwen3moe", {**WIDE, "moe_intermediate_size": 128, "head_dim": 32}, 2, {"quantization": "int4"}),
    ("gpt-oss", {}, 2, {}),
    ("glm4moe", {}, 2, {}),
    ("dots1", {}, 2, {}),
    ("ernie4-5-moe", {}, 2, {}),
    ("granitemoe", {}, 2, {}),
    ("granitemoe-shared", {}, 2, {}),
    ("olmoe", {}, 2, {}),
    ("lfm2", {}, 2, {}),
    ("lfm2moe", {}, 2, {}),
    ("granite4-h-experts", {"mamba_n_groups": 2}, 2, {}),
    ("nemotron-h-experts", {"moe_intermediate_size": 64}, 2, {"quantization": "int8"}),
    ("mamba2", {}, 2, {}),
    ("falcon-h1-norm", {}, 2, {}),
    ("deepseek-v2", {}, 2, {}),
    ("deepseek-v3", {}, 4, {}),
    ("glm4-moe-lite", {}, 2, {"kv_cache_dtype": "int8"}),
    ("glm4-moe-lite", {}, 2, {"quantization": "int8"}),
    ("youtu", {}, 2, {"quantization": "int8"}),
    ("minicpm3", {}, 2, {}),
    ("mistral4", {}, 2, {}),
]
"""Variant, changed fields of config.json, ranks, and flags."""


@pytest.fixture(autouse=True)
def many_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "allowed_cpus", lambda: frozenset(range(8)))


def decoder_of(runner: Runner) -> Decoder:
    return runner._decoder


def embedding_of(decoder: Decoder) -> torch.Tensor:
    return decoder.embedding.block.tokens_VE.look_up(torch.arange(decoder.model.vocab_part))


def cache_bytes(runner: Runner) -> int:
    assert isinstance(runner.forward_passes, CpuForwardPasses)
    return sum(part.nbytes for part in runner.forward_passes.cache.tensors)


@pytest.mark.parametrize(("variant", "overrides", "num_ranks", "flags"), DIVIDED)
def test_several_ranks_give_the_tokens_of_one(
    tmp_path: Path, variant: str, overrides: dict[str, Any], num_ranks: int, flags: dict[str, Any]
) -> None:
    """Prefill in chunks with decode rows; drawn and processed rows; KV heads divided and repeated."""
    build_checkpoint(tmp_path, variant, **overrides)
    prompts = [[token % 300 for token in prompt] for prompt in PROMPTS]
    alone = load_runner(make_config(tmp_path, **flags), lambda text, part: None)
    expected = generate(alone, prompts, NUM_TOKENS, SCHEDULE, PARAMS)
    with ranks_of(tmp_path, num_ranks, tmp_path / "ranks", **flags) as (leader, *_):
        assert generate(leader, prompts, NUM_TOKENS, SCHEDULE, PARAMS) == expected


class EagerDevice(LateDevice):
    """Stands in for a GPU, which begins what is launched at once."""

    def submit(self, work: Callable[[], Result]) -> Fetched:
        fetched = super().submit(work)
        fetched.wait()
        return fetched


def test_ranks_on_a_device_with_graphs_take_the_tokens_of_the_step_before(tmp_path: Path) -> None:
    build_checkpoint(tmp_path, "llama-gqa-tied")
    flags = {"max_num_seqs": 4, "max_num_batched_tokens": 128}
    prompts, params = PROMPTS[:4], PARAMS[:3] + PARAMS[:1]
    expected = generate(load_runner(make_config(tmp_path, **flags), lambda text, part: None), prompts, 8, params=params)
    with late_backend(EagerDevice), ranks_of(tmp_path, 2, tmp_path / "ranks", **flags) as (leader, _):
        assert leader.can_overlap
        assert generate(leader, prompts, 8, params=params) == expected
        rows = [
            Row(i, list(prompt), len(prompt), own, pages=[4 * i + j for j in range(4)])
            for i, (prompt, own) in enumerate(zip(prompts, params, strict=True))
        ]
        first = plan_batch(0, [(row, len(row.ids)) for row in rows], 16)
        for row in rows:
            row.num_computed = len(row.ids)
            row.ids.append(0)
        sources = pack_int32(range(len(rows)))
        second = msgspec.structs.replace(plan_batch(1, [(row, 1) for row in rows], 16), future_token_indices=sources)
        launched = [leader.launch(first), leader.launch(second)]
        tokens = [unpack_int32(one.result().next_tokens) for one in launched]
        assert [list(pair) for pair in zip(*tokens, strict=True)] == [output[:2] for output in expected]


def test_logprobs_of_outputs_and_prompts_are_those_of_the_whole_vocabulary(tmp_path: Path) -> None:
    build_checkpoint(tmp_path, "llama-gqa-tied")
    params = SamplingParams(1, temperature=0.0, num_logprobs=3, num_prompt_logprobs=2)

    def run(runner: Runner) -> list[Any]:
        row = Row(0, PROMPTS[2].copy(), len(PROMPTS[2]), params, pages=[0, 1])
        _, output = run_step(runner, 0, [(row, len(row.ids))], 16)
        return [output.logprobs, output.prompt_logprobs]

    expected = run(load_runner(make_config(tmp_path), lambda text, part: None))
    with ranks_of(tmp_path, 2, tmp_path / "ranks") as (leader, _):
        for ours, theirs in zip(run(leader), expected, strict=True):
            assert ours.token_ids == theirs.token_ids
            assert ours.top_ids == theirs.top_ids
            assert unpack_float32(ours.top_logprobs) == pytest.approx(unpack_float32(theirs.top_logprobs), abs=1e-4)


def test_a_rank_has_its_part_of_weights_and_cache_and_no_more(tmp_path: Path) -> None:
    build_checkpoint(tmp_path, "llama-gqa-tied")
    alone = load_runner(make_config(tmp_path), lambda text, part: None)
    with ranks_of(tmp_path, 2, tmp_path / "ranks") as runners:
        for rank, runner in enumerate(runners):
            model = decoder_of(runner).model
            assert model.find(AttentionDescription)[0].heads[:2] == (2, 1)
            assert model.layers[0].mlp.room_sizes(64) == {"inner": 88, "gated": 44}
            whole, part = (embedding_of(decoder_of(one)) for one in (alone, runner))
            assert torch.equal(part, whole.chunk(2)[rank])
            assert 2 * cache_bytes(runner) == cache_bytes(alone)


def test_a_cache_has_as_many_pages_as_the_smallest_rank_has_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rooms = iter([64, 40])
    monkeypatch.setattr(
        "scheduler_proc.computing.backends.cpu.loading.CpuRunnerFactory.measure_cache_bytes",
        lambda self, make_runner, bytes_per_page: next(rooms) * bytes_per_page,
    )
    build_checkpoint(tmp_path, "llama-gqa-tied")
    with ranks_of(tmp_path, 2, tmp_path / "ranks", num_pages=None) as runners:
        assert [runner.num_pages for runner in runners] == [40, 40]


@pytest.mark.parametrize(
    ("overrides", "num_ranks", "message"),
    [
        ({}, 3, "--tensor-parallel 3: it does not divide the model's 4 attention heads"),
        ({"intermediate_size": 81}, 2, "--tensor-parallel 2: it does not divide the model's 81 columns of the MLP"),
        (
            {"num_attention_heads": 6, "num_key_value_heads": 3, "hidden_size": 96},
            2,
            "--tensor-parallel 2: the model's 3 key/value heads can neither be divided",
        ),
    ],
)
def test_a_model_that_cannot_be_divided_is_refused(
    tmp_path: Path, overrides: dict[str, Any], num_ranks: int, message: str
) -> None:
    build_checkpoint(tmp_path, "llama-gqa-tied", **overrides)
    with pytest.raises(BootError, match=message), ranks_of(tmp_path, num_ranks, tmp_path / "ranks"):
        pass


def test_a_process_by_itself_has_no_other_ranks(tmp_path: Path) -> None:
    build_checkpoint(tmp_path, "llama-gqa-tied")
    with pytest.raises(BootError, match="--tensor-parallel 2: only a server has several ranks"):
        load_runner(make_config(tmp_path, tensor_parallel=2), lambda text, part: None)


def test_a_rank_ends_where_its_step_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If only the step failed, the ranks would continue with different steps."""
    build_checkpoint(tmp_path, "llama-gqa-tied")

    def fail(batch: Batch) -> None:
        raise MemoryError("no room")

    with ranks_of(tmp_path, 2, tmp_path / "ranks") as (leader, _):
        monkeypatch.setattr(leader, "publish", fail)
        with pytest.raises(SystemExit, match="a step failed on rank 0: MemoryError"):
            run_step(leader, 0, [(Row(0, PROMPTS[0].copy(), 1, pages=[0]), 1)], 16)


class LostWork:
    def wait(self) -> None:
        raise RuntimeError("[gloo/transport/tcp/pair.cc:538] Connection closed by peer [127.0.0.1]:1\nand where")


class LostBackend:
    """A process group of which another rank has ended."""

    def _allgather_base(self, output: torch.Tensor, part: torch.Tensor) -> LostWork:
        return LostWork()


def test_a_rank_ends_where_it_has_lost_another() -> None:
    with pytest.raises(SystemExit, match=r"^rank 1 has lost the others: .*Connection closed by peer"):
        ParallelGroup(1, 2, LostBackend()).all_reduce(torch.zeros(2, 4))
