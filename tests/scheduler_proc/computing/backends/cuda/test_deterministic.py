"""`--deterministic`: whole models through the Triton kernels with fixed launches, and what is refused.

In the interpreter (see `tests/kernels/gpu/test_split_decode.py`): logprobs are equal to the bit in any schedule.
"""

import itertools
from pathlib import Path
from typing import Any

import pytest

from benchmarks.experiments.deterministic_0137.check_deterministic import compute
from benchmarks.model_shapes import PAGE_SIZE
from kernels.formats import plain, registry
from kernels.gpu import triton_kernels
from kernels.gpu.launch_table import fix_launches, has_fixed_launches
from messages.errors import BootError
from scheduler_proc.computing.backends.cuda import loading
from scheduler_proc.computing.backends.cuda.backend import CudaBackend
from scheduler_proc.computing.load_runner import load_runner
from scheduler_proc.computing.loading import formats
from scheduler_proc.computing.runner import Runner
from tests.checkpoints import build_checkpoint, make_config
from tests.gguf_models import build_block_model
from tests.kernels.gpu.triton_in_use import DEVICE, triton_in_use
from tests.scheduler_proc.computing.backends.cuda.late_device import LateDevice, late_backend
from tests.scheduler_proc.computing.backends.cuda.test_forward_passes import load_failing, load_late

PROMPT, OTHER = [7, 300, 12, 90, 41, 8, 5], [6, 9, 250]
NUM_TOKENS = 3

ONE_LAYER: dict[str, Any] = {"num_hidden_layers": 1}
TWO_KINDS = {
    "num_hidden_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 4,
}
MODELS: dict[str, dict[str, Any]] = {
    "gpt2": {"n_layer": 1},
    "qwen3-gqa-tied": ONE_LAYER,
    "gpt-oss": TWO_KINDS,
    "qwen2moe": ONE_LAYER | {"moe_intermediate_size": 20},
    "qwen3_5": {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]},
    "granite4-h": {"num_hidden_layers": 2, "layer_types": ["mamba", "attention"]},
    "lfm2": {"num_hidden_layers": 2, "full_attn_idxs": [1]},
    "youtu": ONE_LAYER,
}
"""Learned positions and biases; norms of heads; windows and sinks; experts, some of them shared; gated delta rule;
Mamba-2; short convolutions. `tests/kernels/gpu/test_split_decode.py` has soft caps."""

pytestmark = pytest.mark.skipif(
    DEVICE != "cpu", reason="`benchmarks.experiments.deterministic_0137.check_deterministic` compares bits on a GPU"
)


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights have the formats of a GPU."""
    monkeypatch.setattr(registry, "is_on_cpu", lambda device: False)
    monkeypatch.setattr(plain, "is_on_cpu", lambda device: False)
    monkeypatch.setattr(formats, "has_packed_kernel", lambda like: False)


def load(path: Path, **flags: object) -> Runner:
    return load_runner(make_config(path, block_size=PAGE_SIZE, num_pages=64, **flags), lambda *_: None)


def check_every_schedule(runner: Runner, *chunks_tokens: int) -> None:
    (alone,) = compute(runner, [PROMPT], 100, NUM_TOKENS)
    assert len(alone) == NUM_TOKENS
    for chunk_tokens in chunks_tokens:
        assert compute(runner, [PROMPT, OTHER], chunk_tokens, NUM_TOKENS)[0] == alone
    continued = [*PROMPT, *(token for token, _ in alone[:2])]
    assert compute(runner, [OTHER, continued], 100, 1)[1] == alone[2:]


@pytest.mark.parametrize(
    ("variant", "dtype"), list(zip(MODELS, itertools.cycle(("bfloat16", "float32")), strict=False))
)
def test_logprobs_are_equal_to_the_bit_in_any_schedule(variant: str, dtype: str, tmp_path: Path) -> None:
    """Alone, in chunks, next to another request, and continued after two tokens. Every token is a step in one model."""
    build_checkpoint(tmp_path, variant, **MODELS[variant])
    runner = load(tmp_path, dtype=dtype)
    with triton_in_use(is_fixed=True) as taken:
        check_every_schedule(runner, 3, *([1] if variant == "qwen3-gqa-tied" else []))
    attention = "latent" if variant == "youtu" else "paged"
    assert {"plain_linear", f"{attention}_decode", f"{attention}_prefill"} <= set(taken)


def test_weights_in_their_forms(tmp_path: Path) -> None:
    forms = {"attn_v": "Q6_K", "output.weight": "Q8_0", "": "Q4_K"}
    model = build_block_model(
        tmp_path, "qwen2-mha-untied", lambda name: next(form for part, form in forms.items() if part in name)
    )
    runner = load(model.path, dtype="bfloat16")
    with triton_in_use(is_fixed=True) as taken:
        (alone,) = compute(runner, [PROMPT[:4]], 100, 2)
        assert compute(runner, [PROMPT[:4], OTHER[:1]], 3, 2)[0] == alone
    assert "planes_linear" in taken


def test_captured_steps_have_the_bits_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the plans of the runner: decode rows, prompts and both, in shapes with room to spare."""
    monkeypatch.setattr(loading, "plan_warm_ups", lambda *arguments: [])  # seconds in the interpreter
    build_checkpoint(tmp_path, "qwen3-gqa-tied", **ONE_LAYER)
    flags = {"deterministic": True, "max_num_seqs": 2, "max_num_batched_tokens": 16, "num_pages": 8}
    with triton_in_use(is_fixed=True):
        device = LateDevice()
        captured = load_late(tmp_path, device, triton_kernels.load_triton_kernels, **flags)
        eager = load_late(tmp_path, LateDevice(), triton_kernels.load_triton_kernels, enforce_eager=True, **flags)
        num_before = device.num_replays
        together = compute(captured, [OTHER, PROMPT], 3, NUM_TOKENS)
        assert device.num_replays >= num_before + 5
        assert [together[1]] == compute(eager, [PROMPT], 16, NUM_TOKENS)


def test_transformers_models_are_refused(tmp_path: Path) -> None:
    build_checkpoint(tmp_path, "gpt_neox")
    reason = r"--deterministic: torch's products in transformers' code .*; take a family in README.md, or leave"
    with late_backend(LateDevice), pytest.raises(BootError, match=reason):
        load_runner(make_config(tmp_path, deterministic=True), lambda *_: None)


def test_several_ranks_are_refused(tmp_path: Path) -> None:
    build_checkpoint(tmp_path, "llama-mqa")
    config = make_config(tmp_path, deterministic=True, tensor_parallel=2)
    with pytest.raises(BootError, match=r"--deterministic: NCCL's sums of several ranks .*; use --data-parallel, or"):
        CudaBackend().check_model(config, None)


@pytest.fixture
def flexible() -> Any:
    yield
    fix_launches(False)


def test_a_kernel_that_cannot_be_compiled_ends_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flexible: None
) -> None:
    """Plain torch would compute it otherwise."""
    build_checkpoint(tmp_path, "llama-mqa")

    def load_kernels(device_type: str) -> None:
        assert has_fixed_launches()
        error = RuntimeError("out of resource: shared memory")
        monkeypatch.setattr("kernels.gpu.triton_kernels._loaded", {"rms_norm": load_failing("rms_norm", error)})
        monkeypatch.setattr("kernels.gpu.triton_kernels._device_type", device_type)

    with pytest.raises(
        BootError, match="--deterministic: the Triton kernel of rms_norm cannot be compiled or launched"
    ):
        load_late(tmp_path, LateDevice(), load_kernels, deterministic=True)


def test_without_triton_the_start_ends(tmp_path: Path, flexible: None) -> None:
    def fail(device_type: str) -> None:
        raise ImportError("No module named 'triton'")

    build_checkpoint(tmp_path, "llama-mqa")
    with pytest.raises(BootError, match="--deterministic needs Triton's kernels: `pip install triton`"):
        load_late(tmp_path, LateDevice(), fail, deterministic=True)
