import json
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

from kernels.formats.plain import PlainWeight
from messages.columns import unpack_float32, unpack_int32
from messages.errors import BootError
from messages.ring.requests import SamplingParams
from scheduler_proc.computing.load_runner import load_runner
from scheduler_proc.computing.runner import Runner
from tests.checkpoints import build_checkpoint, make_config
from tests.scheduler_proc.computing.drive import Row, Schedule, generate, plan_batch, run_step

SAMPLED = [
    SamplingParams(max_tokens=12, temperature=1.5, seed=1),
    SamplingParams(max_tokens=12, temperature=0.8, top_k=20, seed=-5),
    SamplingParams(max_tokens=12, temperature=1.0, top_p=0.7, seed=1),
    SamplingParams(max_tokens=12, temperature=0.0),
    SamplingParams(max_tokens=12, temperature=1.2, min_p=0.02, top_p=0.95, seed=1 << 62),
]
PROMPTS = [[5, 6, 7], [5, 6, 7], list(range(40)), [9], [100, 200, 300, 12, 4, 4, 4, 4, 4, 4, 4]]

QWEN_CONFIG: dict[str, object] = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 96,
    "max_position_embeddings": 128,
    "max_window_layers": 2,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_sliding_window": False,
    "vocab_size": 320,
}
"""The fields of the config.json that Qwen3-0.6B is published with; the sizes but head_dim are small."""


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    build_checkpoint(path, "llama-gqa-tied")
    return path


@pytest.fixture(scope="module")
def runner(model_dir: Path) -> Runner:
    return load_runner(make_config(model_dir), lambda text, fraction: None)


def test_phases_are_reported(model_dir: Path) -> None:
    reports: list[tuple[str, float | None]] = []
    loaded = load_runner(make_config(model_dir, num_pages=77), lambda *report: reports.append(report))
    texts = dict.fromkeys(text for text, _ in reports)
    texts.pop("building the C kernels", None)  # once on a machine
    assert list(texts) == [
        "reading the model's configuration",
        "loading weights",
        "allocating the KV cache",
        "warming up",
    ]
    fractions = [fraction for text, fraction in reports if text == "loading weights"]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    assert loaded.num_pages == 77


@pytest.mark.parametrize("schedule", [Schedule(), Schedule(chunk_tokens=6, stagger=1, seed=9)], ids=str)
def test_a_seeded_request_gives_the_same_tokens_alone_and_in_a_batch(runner: Runner, schedule: Schedule) -> None:
    together = generate(runner, PROMPTS, 12, schedule, SAMPLED)
    for prompt, params, output in zip(PROMPTS, SAMPLED, together, strict=True):
        assert generate(runner, [prompt], 12, Schedule(seed=3), [params]) == [output]
    assert together[0] != together[1]


def test_a_continued_request_continues_as_it_would_have(runner: Runner) -> None:
    (whole,) = generate(runner, PROMPTS[:1], 12, params=SAMPLED[:1])
    (rest,) = generate(runner, [PROMPTS[0] + whole[:5]], 7, params=SAMPLED[:1])
    assert whole[5:] == rest


def test_a_step_can_be_run_again(runner: Runner) -> None:
    """What a step returns depends on its plan and on the cache, not on what ran before it."""
    row = Row(1, list(PROMPTS[2]), len(PROMPTS[2]), SAMPLED[0], pages=[3, 8, 5])
    batch = plan_batch(7, [(row, len(row.ids))], 16)
    first = runner.run(batch)
    generate(runner, PROMPTS, 3, params=SAMPLED)
    assert runner.run(batch) == first
    assert first.step_id == 7


def test_a_step_in_which_no_row_samples_returns_no_tokens(runner: Runner) -> None:
    row = Row(1, list(range(20)), 20, pages=[0, 1])
    assert runner.run(plan_batch(1, [(row, 5)], 16)).next_tokens == b""


def test_a_row_that_is_not_finite_fails_alone(model_dir: Path) -> None:
    loaded = load_runner(make_config(model_dir), lambda text, fraction: None)
    poisoned_token = 7
    token_ids = torch.arange(loaded._decoder.model.vocab_size)
    poisoned_VE = loaded._decoder.embedding.block.tokens_VE.look_up(token_ids).clone()  # the head keeps the sound one
    poisoned_VE[poisoned_token] = float("nan")
    loaded._decoder.embedding.block.tokens_VE = PlainWeight(poisoned_VE)
    prompts = [[1, 2, 3], [1, poisoned_token, 3], [4] * 20]
    rows = [Row(i, list(prompt), len(prompt), SAMPLED[i], pages=[2 * i, 2 * i + 1]) for i, prompt in enumerate(prompts)]
    run_step(loaded, 0, [(row, len(row.ids)) for row in rows], 16)
    assert [row.output_ids[0] >= 0 for row in rows] == [True, False, True]
    assert rows[1].output_ids == [-1]
    # Its pages serve another request afterwards, although they hold NaN.
    after = Row(9, [4] * 20, 20, SAMPLED[2], pages=[2, 3])
    run_step(loaded, 1, [(after, 20)], 16)
    assert after.output_ids == rows[2].output_ids


def test_dummy_weights_are_the_same_in_every_run(model_dir: Path) -> None:
    runs = [load_runner(make_config(model_dir, load_format="dummy"), lambda text, fraction: None) for _ in range(2)]
    outputs = [generate(loaded, PROMPTS, 5) for loaded in runs]
    assert outputs[0] == outputs[1]
    assert len({token for output in outputs[0] for token in output}) > 1


@pytest.mark.parametrize("name", ["Qwen2", "Qwen3"])
def test_a_config_without_weights_runs_with_dummy_ones(tmp_path: Path, name: str) -> None:
    fields = QWEN_CONFIG | {"architectures": [f"{name}ForCausalLM"], "model_type": name.lower()}
    (tmp_path / "config.json").write_text(json.dumps(fields), encoding="utf-8")
    loaded = load_runner(make_config(tmp_path, load_format="dummy"), lambda text, fraction: None)
    outputs = generate(loaded, PROMPTS, 5)
    assert all(0 <= token < 320 for output in outputs for token in output)
    assert outputs[0] == outputs[1]


def test_the_default_step_on_a_cpu_is_small(model_dir: Path, runner: Runner) -> None:
    assert runner.max_num_batched_tokens == 512
    provided = load_runner(make_config(model_dir, max_num_batched_tokens=3), lambda text, fraction: None)
    assert provided.max_num_batched_tokens == 3


def test_a_directory_without_a_model_is_refused(tmp_path: Path, model_dir: Path) -> None:
    config = make_config(model_dir)
    (tmp_path / "config.json").write_text('{"architectures": ["T5ForConditionalGeneration"]}', encoding="utf-8")
    elsewhere = msgspec.structs.replace(config, facts=msgspec.structs.replace(config.facts, model_dir=str(tmp_path)))
    with pytest.raises(BootError, match=r"T5ForConditionalGeneration.*GPT2LMHeadModel, LlamaForCausalLM"):
        load_runner(elsewhere, lambda text, fraction: None)


def test_next_tokens_are_int32(runner: Runner) -> None:
    rows = [Row(i, [i + 1], 1, pages=[i]) for i in range(3)]
    tokens = unpack_int32(runner.run(plan_batch(1, [(row, 1) for row in rows], 16)).next_tokens)
    assert len(tokens) == 3
    assert all(0 <= token < 320 for token in tokens)


@pytest.mark.parametrize("quantization", ["int8", "int4"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_quantized_weights_serve(model_dir: Path, quantization: str, dtype: str) -> None:
    """The tokens of a prompt are the same alone and in a batch, and how likely they are is near what it was."""
    config = make_config(model_dir, quantization=quantization, dtype=dtype)
    loaded = load_runner(config, lambda text, fraction: None)
    together = generate(loaded, PROMPTS, 12, params=SAMPLED)
    for prompt, params, output in zip(PROMPTS, SAMPLED, together, strict=True):
        assert generate(loaded, [prompt], 12, Schedule(seed=3), [params]) == [output]
    plain = load_runner(make_config(model_dir), lambda text, fraction: None)
    exact, near = (mean_logprob(runner, list(range(60))) for runner in (plain, loaded))
    assert abs(near - exact) < {"int8": 0.05, "int4": 0.6}[quantization]


@pytest.mark.parametrize("variant", ["gpt2", "llama-gqa-tied"])
@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_a_head_that_is_tied_by_the_configuration_alone_is_used(
    tmp_path: Path, variant: str, quantization: str
) -> None:
    """The same checkpoint under a configuration that ties nothing is what `transformers` 5 makes of both."""
    build_checkpoint(tmp_path, variant)
    tensors = load_file(tmp_path / "model.safetensors")
    embedding = next(tensor for name, tensor in tensors.items() if "embed_tokens" in name or "wte" in name)
    save_file(tensors | {"lm_head.weight": embedding.flip(0).contiguous()}, tmp_path / "model.safetensors")
    fields = json.loads((tmp_path / "config.json").read_text())
    ids, found = [5, 9, 200, 31], []
    for is_tied in (True, False):
        (tmp_path / "config.json").write_text(json.dumps(fields | {"tie_word_embeddings": is_tied}))
        config = make_config(tmp_path, quantization=quantization)
        found.append(mean_logprob(load_runner(config, lambda text, fraction: None), ids))
    assert found[0] == found[1]
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(fields))
    config = make_config(tmp_path, quantization=quantization)
    assert mean_logprob(load_runner(config, lambda text, fraction: None), ids) != found[0]


def mean_logprob(runner: Runner, ids: list[int]) -> float:
    """Returns the mean logprob of a prompt's tokens but the first."""
    params = SamplingParams(max_tokens=1, temperature=0.0, num_prompt_logprobs=0)
    row = Row(1, list(ids), len(ids), params, pages=[0, 1, 2, 3])
    _, output = run_step(runner, 0, [(row, len(ids))], 16)
    assert output.prompt_logprobs is not None
    logprobs = unpack_float32(output.prompt_logprobs.logprobs)
    return sum(logprobs) / len(logprobs)
