"""Rows with adapters against transformers with the updates merged into its weights, in float32."""

import json
import random
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file

from kernels.cpu.library import find_kernel
from messages.columns import unpack_float32
from messages.ring.requests import SamplingParams
from messages.ring.steps import ForwardOutput
from scheduler_proc.computing.backends.cpu.forward_passes import CpuForwardPasses
from scheduler_proc.computing.load_runner import load_runner
from scheduler_proc.computing.runner import Runner
from tests.checkpoints import VOCAB_SIZE, build_checkpoint, make_config
from tests.gguf_models import build_block_model
from tests.scheduler_proc.computing.drive import Row, Schedule, generate, run_step
from tests.scheduler_proc.computing.loading.adapters.adapter_cases import (
    PREFIX,
    AdapterCase,
    make_adapter,
    merge,
    merge_tables,
)
from tests.scheduler_proc.computing.reference import assert_greedy

GOLDEN = Path(__file__).parent / "golden"
TOLERANCE = 1e-4
SCHEDULES = [Schedule(), Schedule(chunk_tokens=7, stagger=1)]
SLOTS = [1, 2, -1, 1, 0]
"""The slots of the rows' adapters; no adapter is placed into slot 0."""


def make_prompts() -> list[list[int]]:
    chooser = random.Random(3)
    return [[chooser.randrange(VOCAB_SIZE) for _ in range(length)] for length in (5, 17, 9, 1, 20)]


def load(path: Path, **flags: object) -> Runner:
    config = make_config(path, max_loras=3, max_lora_rank=8, **flags)
    return load_runner(config, lambda text, fraction: None)


def place(runner: Runner, slot: int, case: AdapterCase, path: Path) -> None:
    runner.place_adapter(slot, runner.read_adapter(case.write(path / f"adapter-{slot}")))


def check(
    runner: Runner, models: "dict[int, transformers.PreTrainedModel]", what: str, schedules: list[Schedule] = SCHEDULES
) -> None:
    """Compares the tokens of rows with each model's adapter, all together; slot -1 is the model without one."""
    prompts, slots = make_prompts(), [slot if slot in models else -1 for slot in SLOTS]
    for schedule in schedules:
        outputs = generate(runner, prompts, 8, schedule, adapter_slots=slots)
        for prompt, output, slot in zip(prompts, outputs, slots, strict=True):
            assert_greedy(models[slot], prompt, output, f"{what}, {schedule}, slot {slot}")


def score(runner: Runner, prompt: list[int], slot: int) -> tuple[list[float], ForwardOutput]:
    """Returns the logprobs of the prompt's tokens after the first, and the output."""
    params = SamplingParams(1, temperature=0.0, num_logprobs=1, num_prompt_logprobs=1)
    row = Row(0, prompt, len(prompt), params, pages=[3, 1, 2], adapter_slot=slot)
    row.state_slot = 0 if runner.states is not None else -1
    row.window_pages = [1, 3, 2] if runner.windows is not None else []
    _, output = run_step(runner, 0, [(row, len(prompt))], 16)
    assert output.prompt_logprobs is not None
    return list(unpack_float32(output.prompt_logprobs.logprobs)), output


def assert_logprobs(runner: Runner, model: "transformers.PreTrainedModel", slot: int) -> None:
    prompt = make_prompts()[1]
    with torch.inference_mode():
        logprobs = model(torch.tensor([prompt])).logits[0].log_softmax(-1)
    expected = [float(logprobs[index, token]) for index, token in enumerate(prompt[1:])]
    found, output = score(runner, [*prompt], slot)
    assert found == pytest.approx(expected, abs=TOLERANCE)
    assert output.logprobs is not None
    assert list(unpack_float32(output.logprobs.logprobs)) == pytest.approx([float(logprobs[-1].max())], abs=TOLERANCE)


@pytest.mark.parametrize(
    "variant",
    ["gpt2", "llama-gqa-tied", "phi3-window", "glm4", "gemma4-shared-kv", "falcon-h1", "qwen3_5-biases-untied"],
)
def test_equals_the_merged_model(tmp_path: Path, variant: str) -> None:
    """Fused and transposed linears, heads in another order, factors, recurrent layers. Both adapters in one step."""
    model = build_checkpoint(tmp_path / "model", variant)
    runner = load(tmp_path / "model")
    kinds = {"use_rslora": True, "rank_pattern": {"up_proj": 2, "c_fc": 2}, "alpha_pattern": {"down_proj": 3}}
    cases = {1: make_adapter(model, 4, seed=1), 2: make_adapter(model, 8, seed=2, **kinds)}
    models = {slot: merge(model, case) for slot, case in cases.items()} | {-1: model}
    for slot, case in cases.items():
        place(runner, slot, case, tmp_path)
    check(runner, models, variant)
    assert_logprobs(runner, models[2], 2)


def test_a_slot_takes_another_adapter_and_an_empty_one_changes_nothing(tmp_path: Path) -> None:
    """The captured steps are those of the first adapter."""
    model = build_checkpoint(tmp_path / "model", "llama-mha", intermediate_size=96)
    runner = load(tmp_path / "model")
    for seed in (1, 2):
        case = make_adapter(model, 4, seed, modules=("q_proj", "down_proj")[: 3 - seed])
        place(runner, 1, case, tmp_path / str(seed))
        check(runner, {1: merge(model, case), 0: model, -1: model}, f"adapter {seed}", SCHEDULES[:1])
    passes = runner.forward_passes
    assert isinstance(passes, CpuForwardPasses)
    if find_kernel("packed_linear", torch.float32) is not None:
        assert passes.can_capture
        assert set(passes.captures) == {(frozenset({"adapters"}), 5)}


def test_a_step_without_adapters_is_the_same_calls_as_with_lora_off(tmp_path: Path) -> None:
    build_checkpoint(tmp_path, "llama-mha", intermediate_size=96)
    runner, plain = load(tmp_path), load_runner(make_config(tmp_path), lambda text, fraction: None)
    for each in (runner, plain):
        generate(each, make_prompts(), 4)
    counts = [
        {rows: [call.run for call in calls.array] for rows, (calls, _) in each.forward_passes.captures.items()}
        for each in (runner, plain)
        if isinstance(each.forward_passes, CpuForwardPasses)
    ]
    assert counts[0] == counts[1]


@pytest.mark.parametrize("form", ["F32", "F16"])
def test_an_adapter_of_a_gguf_file(tmp_path: Path, form: str) -> None:
    """The converter has changed the order of the rows of queries and keys; the adapter has the checkpoint's."""
    block_model = build_block_model(tmp_path, "llama-gqa-tied", lambda name: form)
    model = transformers.AutoModelForCausalLM.from_pretrained(block_model.values)
    runner, case = load(block_model.path), make_adapter(model, 4)
    place(runner, 1, case, tmp_path)
    check(runner, {1: merge(model, case), -1: model}, form, SCHEDULES[1:])


@pytest.mark.parametrize("variant", ["llama-gqa-tied", "gemma3-capped", "gpt2-untied"])
@pytest.mark.parametrize("kind", ["saved", "updated", "tied"])
def test_an_embedding_and_a_head_of_an_adapters_own(tmp_path: Path, variant: str, kind: str) -> None:
    """Whole ones (modules_to_save) and low-rank updates; of a tied model, both together or each alone."""
    model = build_checkpoint(tmp_path / "model", variant)
    runner, case = load(tmp_path / "model"), make_adapter(model, 4)
    merged = merge_tables(merge(model, case), case, kind)
    place(runner, 1, case, tmp_path)
    place(runner, 2, make_adapter(model, 2, seed=5), tmp_path)
    check(runner, {1: merged, 2: merge(model, make_adapter(model, 2, seed=5)), -1: model}, f"{variant}, {kind}")
    assert_logprobs(runner, merged, 1)
    assert_logprobs(runner, model, -1)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_logprobs_are_the_same_bits_in_decode_and_in_a_prompt(tmp_path: Path, dtype: str) -> None:
    """With updates of linear layers, and of the head."""
    model = build_checkpoint(tmp_path / "model", "llama-biases", intermediate_size=96)
    runner, cases = (
        load(tmp_path / "model", dtype=dtype),
        {1: make_adapter(model, 4), 2: make_adapter(model, 8, seed=2)},
    )
    merge_tables(merge(model, cases[2]), cases[2], "updated")
    for slot, case in cases.items():
        place(runner, slot, case, tmp_path)
    params = SamplingParams(40, temperature=1.0, num_logprobs=1)
    rows = [
        Row(uid, [9 + uid], 1, params, pages=[3 * uid, 3 * uid + 1, 3 * uid + 2], adapter_slot=slot)
        for uid, slot in enumerate((-1, 1, 2))
    ]
    found: list[list[float]] = [[], [], []]
    for step in range(40):
        planned, output = run_step(runner, step, [(row, 1) for row in rows], 16)
        assert output.logprobs is not None
        for (row, _), value in zip(planned, unpack_float32(output.logprobs.logprobs), strict=True):
            found[row.uid].append(value)
    for row in rows:
        assert score(runner, row.ids, row.adapter_slot)[0] == found[row.uid]


def test_equals_what_peft_merged(tmp_path: Path) -> None:
    """`make_golden.py` has made the adapter and the logprobs with PEFT's `merge_and_unload`."""
    build_checkpoint(tmp_path, "llama-gqa-tied")
    runner, expected = load(tmp_path), json.loads((GOLDEN / "expected.json").read_text(encoding="utf-8"))
    for name, target in expected["logprobs"].items():
        runner.place_adapter(1, runner.read_adapter(str(GOLDEN / name)))
        found, _ = score(runner, [*expected["prompt"]], 1)
        assert found == pytest.approx(target, abs=TOLERANCE), name
    assert any(
        name.startswith(f"{PREFIX}model.embed_tokens.lora_embedding_A")
        for name in load_file(GOLDEN / "tables" / "adapter_model.safetensors")
    )
