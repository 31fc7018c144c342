"""Both halves in one process: golden tokens on the CPU, the same with overlapped steps, and what is imported."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from llguidance import LLMatcher
from tokenizers import Tokenizer

from kernels.cpu.library import find_kernel
from messages.errors import UsageError
from messages.ring.requests import Grammar, SamplingParams
from scheduler_proc.grammar_builder import GrammarBuilder
from scheduler_proc.offline import OfflineEngine, Output
from scheduler_proc.stepper import Stepper
from tests.checkpoints import CONTEXT, build_checkpoint, make_config
from tests.scheduler_proc.computing.backends.cuda.late_device import LateDevice, late_backend

ROOT = Path(__file__).resolve().parents[2]
PROMPTS = [[5, 6, 7], list(range(40)), [9], [5, 6, 7, 8], list(range(60, 80)), list(range(45)), [1] * 30]
PARAMS = [
    SamplingParams(12, temperature=0.0),
    SamplingParams(20, temperature=1.2, seed=4),
    SamplingParams(7, temperature=0.0, repetition_penalty=1.3),
    SamplingParams(1, temperature=0.0),
    SamplingParams(30, temperature=0.8, top_p=0.9, top_k=40, seed=5),
    SamplingParams(25, temperature=0.0, stop_token_ids=tuple(range(0, 320, 9))),
    SamplingParams(200, temperature=0.0),
]


@pytest.mark.parametrize("name", ["nano-shakespeare-gpt2", "tinystories-656k-llama"])
def test_trained_models_give_the_captured_ids(shared_dir: Path, name: str) -> None:
    path = shared_dir / "models" / name
    cases = json.loads((path / "golden.json").read_text(encoding="utf-8"))["cases"]
    params = [SamplingParams(len(case["output_ids"]), temperature=0.0, ignore_eos=True) for case in cases]
    outputs = OfflineEngine(make_config(path)).generate([case["prompt_ids"] for case in cases], params)
    assert [output.token_ids for output in outputs] == [case["output_ids"] for case in cases]
    assert {output.finish_reason for output in outputs} == {"length"}


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    build_checkpoint(path, "llama-gqa-tied")
    return path


def late_engine(path: Path, device: LateDevice, **flags: object) -> OfflineEngine:
    """An engine whose steps run on a device that stands in for a GPU."""
    with late_backend(lambda: device):
        return OfflineEngine(make_config(path, max_num_seqs=4, max_num_batched_tokens=32, **flags))


@pytest.fixture(scope="module")
def expected(model_dir: Path) -> list[Output]:
    return OfflineEngine(make_config(model_dir)).generate(PROMPTS, PARAMS)


@pytest.mark.parametrize("flags", [{}, {"overlap": False}, {"num_pages": 12}], ids=["overlap", "none", "few pages"])
def test_overlapped_steps_give_the_same_tokens(
    model_dir: Path, expected: list[Output], flags: dict[str, object]
) -> None:
    """Rows end by length, by a token and at the context's end, while the step after their last one runs already."""
    device = LateDevice()
    engine = late_engine(model_dir, device, **flags)
    outputs = engine.generate(PROMPTS, PARAMS)
    assert [(output.token_ids, output.finish_reason) for output in outputs] == [
        (output.token_ids, output.finish_reason) for output in expected
    ]
    assert (device.max_waiting == 2) == (flags.get("overlap") is None)
    gauges = engine.gauges
    assert (gauges["requests"], gauges["pages_in_use"]) == (0, 0)
    assert len(expected[6].token_ids) == CONTEXT - 30
    assert expected[5].finish_reason == "stop"


def test_with_a_draft_model_on_a_gpu_no_step_runs_ahead_and_the_tokens_are_the_same(
    model_dir: Path, expected: list[Output]
) -> None:
    """The model is its own draft model; its graphs are captured, and the draft model's are not."""
    device = LateDevice()
    engine = late_engine(model_dir, device, draft_model=model_dir)
    outputs = engine.generate(PROMPTS, PARAMS)
    assert [output.token_ids for output in outputs] == [output.token_ids for output in expected]
    assert engine.gauges["accepted_tokens"] == engine.gauges["draft_tokens"] > 0
    assert engine.gauges["steps_ahead"] == 0
    assert device.num_replays > 0


@pytest.fixture
def threads_restored() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def tokens_of(outputs: list[Output]) -> list[list[int]]:
    return [output.token_ids for output in outputs]


@pytest.mark.parametrize("flags", [{}, {"num_pages": 12}, {"block_size": 4}], ids=["default", "few", "small"])
@pytest.mark.usefixtures("threads_restored")
def test_steps_that_are_planned_while_others_run_on_a_cpu_give_the_same_tokens(
    model_dir: Path, flags: dict[str, object]
) -> None:
    flags = {"quantization": "int8", "cpu_threads": 3, **flags}
    ahead, alone = (OfflineEngine(make_config(model_dir, overlap=overlap, **flags)) for overlap in (True, False))
    if find_kernel("embed", torch.float32) is None:
        pytest.skip("there are no C kernels here")
    expected = alone.generate(PROMPTS, PARAMS)
    for _ in range(2):  # once with captures of each number of rows, and once without
        outputs = ahead.generate(PROMPTS, PARAMS)
        assert tokens_of(outputs) == tokens_of(expected)
    gauges = ahead.gauges
    assert gauges["steps_ahead"] > 50
    assert (gauges["requests"], gauges["pages_in_use"], alone.gauges["steps_ahead"]) == (0, 0, 0)


@pytest.mark.usefixtures("threads_restored")
def test_a_draft_model_has_no_step_planned_ahead(model_dir: Path) -> None:
    flags = {"quantization": "int8", "cpu_threads": 3, "draft_model": model_dir}
    engine = OfflineEngine(make_config(model_dir, **flags))
    engine.generate(PROMPTS, PARAMS)
    assert engine.gauges["steps_ahead"] == 0


@pytest.mark.usefixtures("threads_restored")
def test_lookup_of_draft_tokens_plans_ahead_where_it_has_none(model_dir: Path) -> None:
    """Sampled text of random weights has no repetitions; a request that is sent again has the same text."""
    flags = {"quantization": "int8", "cpu_threads": 3}
    params = [SamplingParams(max_tokens=100, temperature=1.0, seed=3, ignore_eos=True)]
    expected = tokens_of(OfflineEngine(make_config(model_dir, **flags)).generate(PROMPTS[:1], params))
    engine = OfflineEngine(make_config(model_dir, **flags, speculative="ngram"))
    assert tokens_of(engine.generate(PROMPTS[:1], params)) == expected
    num_ahead, num_drafts = engine.gauges["steps_ahead"], engine.gauges["draft_tokens"]
    assert num_ahead > 40
    assert num_drafts < 10
    assert tokens_of(engine.generate(PROMPTS[:1], params)) == expected
    assert engine.gauges["draft_tokens"] > num_drafts + 50


@pytest.mark.usefixtures("threads_restored")
def test_what_ends_a_call_leaves_no_step_running(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The threads of a step read the memory of the engine, which may go with the call."""
    engine = OfflineEngine(make_config(model_dir, quantization="int8", cpu_threads=3))
    stepper = engine._stepper
    num_steps = 0

    def interrupt(*args: object) -> None:
        nonlocal num_steps
        num_steps += 1
        if num_steps > 20 and stepper.has_step:
            raise KeyboardInterrupt
        Stepper.step(stepper, *args)

    monkeypatch.setattr(stepper, "step", interrupt)
    with pytest.raises(KeyboardInterrupt):
        engine.generate(PROMPTS[6:], PARAMS[6:])
    assert not stepper.has_step
    monkeypatch.undo()
    first, again = engine.generate(PROMPTS[:2], PARAMS[:2]), engine.generate(PROMPTS[:2], PARAMS[:2])
    assert tokens_of(first) == tokens_of(again)


def test_the_prefix_cache_lasts_from_call_to_call(model_dir: Path) -> None:
    engine = OfflineEngine(make_config(model_dir))
    first = engine.generate(PROMPTS[1:2], PARAMS[:1])
    again = engine.generate(PROMPTS[1:2], PARAMS[:1])
    assert first[0].token_ids == again[0].token_ids
    assert (first[0].usage.cached_tokens, again[0].usage.cached_tokens) == (0, 32)


def test_a_prompt_that_cannot_run_is_refused_alone(model_dir: Path) -> None:
    engine = OfflineEngine(make_config(model_dir))
    good, too_long, unknown = engine.generate([[1, 2], [1] * CONTEXT, [999]], [SamplingParams(3, temperature=0.0)] * 3)
    assert len(good.token_ids) == 3
    assert good.error is None
    assert too_long.error is not None
    assert "maximum context length is 96" in too_long.error.message
    assert unknown.error is not None
    assert (unknown.finish_reason, unknown.token_ids) == ("error", [])


def test_what_needs_text_is_refused(model_dir: Path) -> None:
    engine = OfflineEngine(make_config(model_dir))
    with pytest.raises(UsageError, match="stop, num_logprobs: only a server does this"):
        engine.generate([[1]], [SamplingParams(3, stop=("x",), num_logprobs=1)])
    with pytest.raises(UsageError, match="2 prompts and 1 sampling parameters"):
        engine.generate([[1], [2]], [SamplingParams(3)])


SCRIPT = """
import sys
sys.modules.update(dict.fromkeys(%(hidden)r))
from messages.config.server import Config, ModelConfig, ModelFacts
from messages.ring.requests import SamplingParams
from scheduler_proc.offline import OfflineEngine
facts = ModelFacts(
    model_dir=%(model_dir)r, tokenizer_dir="", served_names=(), vocab_size=320, max_model_len=32
)
model = ModelConfig(device="cpu", cpu_threads=1, load_format="dummy")
(output,) = OfflineEngine(Config(model=model, facts=facts)).generate([[1, 2]], [SamplingParams(3)])
print(len(output.token_ids))
"""


def test_it_needs_nothing_that_only_the_other_processes_need(model_dir: Path) -> None:
    """Random weights run where torch, numpy and msgspec are all there is."""
    hidden = ("zmq", "starlette", "tokenizers", "jinja2", "transformers", "huggingface_hub", "psutil", "safetensors")
    script = SCRIPT % {"hidden": hidden, "model_dir": str(model_dir)}
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "3\n"


def test_grammars_are_kept_to_where_something_makes_them() -> None:
    path = ROOT / "assets" / "tool-caller"
    config = make_config(path)
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    grammar = Grammar("llguidance", LLMatcher.grammar_from_regex("(yes|no), (yes|no)!"), "")
    params = [SamplingParams(30, temperature=1.0, seed=1, grammar=grammar)]
    with pytest.raises(UsageError, match="grammar: only a server"):
        OfflineEngine(config).generate([[5, 6]], params)
    (output,) = OfflineEngine(config, make_grammars=partial(GrammarBuilder, config)).generate([[5, 6]], params)
    assert re.fullmatch("(yes|no), (yes|no)!", tokenizer.decode(output.token_ids))
