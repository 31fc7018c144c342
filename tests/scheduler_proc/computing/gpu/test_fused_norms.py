"""Norm, linear layer and activation as one operation in steps of few tokens: fewer operations, the same tokens."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kernels import packed_linear
from scheduler_proc.computing.loading import weights
from scheduler_proc.computing.loading.load_runner import load_runner
from scheduler_proc.computing.model import decoder, linear
from tests.checkpoints import build_checkpoint, make_config
from tests.scheduler_proc.computing.drive import Row, Schedule, generate, plan_batch
from tests.scheduler_proc.computing.gpu.late_device import LateDevice
from tests.scheduler_proc.computing.gpu.test_forward_passes import FLAGS, PROMPTS, VARIED, load_late, nobody

OPERATIONS = ("layer_norm", "norm_linear", "paged_decode", "rms_norm", "rotate_store", "silu_mul")
NUM_LAYERS = 3
HEAD, FINAL_NORM = {"linear": 1}, {"rms_norm": 1}


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts the operations of forward passes by name."""
    counts: Counter[str] = Counter()

    def counting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            counts[name] += 1
            return function(*arguments, **named)

        return call

    for name in OPERATIONS:
        monkeypatch.setattr(decoder, name, counting(name, getattr(decoder, name)))
    products = SimpleNamespace(linear=counting("linear", linear.functional.linear))
    monkeypatch.setattr(linear, "functional", products)
    for module in (packed_linear, weights):  # as on a GPU
        monkeypatch.setattr(module, "has_packed_kernel", lambda weight: False)
    return counts


@pytest.mark.parametrize("variant", ["llama-biases", "qwen3-gqa-tied"])
def test_a_layer_has_three_operations_fewer_and_no_token_changes(
    tmp_path: Path, called: Counter[str], variant: str
) -> None:
    """Steps of at most 16 tokens and larger ones, also one of which few tokens leave the last attention."""
    build_checkpoint(tmp_path, variant)
    schedule = Schedule(chunk_tokens=30, stagger=1)
    expected = generate(load_runner(make_config(tmp_path, **FLAGS), nobody), PROMPTS, 8, schedule, VARIED)
    fused, single = (load_late(tmp_path, LateDevice(), fuse_norms=fuses) for fuses in (True, False))
    assert generate(fused, PROMPTS, 8, schedule, VARIED) == expected
    decode_step = plan_batch(1, [(Row(i, [1, 2], 1, num_computed=1, pages=[i]), 1) for i in range(3)], 16)
    before = {"rms_norm": 2, "linear": 4, "silu_mul": 1, "rotate_store": 1, "paged_decode": 1}
    after = {"norm_linear": 2, "linear": 2, "rotate_store": 1, "paged_decode": 1}
    for runner, of_a_layer in ((single, before), (fused, after)):
        called.clear()
        runner.run(decode_step)
        assert called == Counter(HEAD) + Counter(FINAL_NORM) + Counter(
            {name: NUM_LAYERS * count for name, count in of_a_layer.items()}
        )


def test_layer_norms_and_float16_stay_single_operations(tmp_path: Path, called: Counter[str]) -> None:
    for variant, flags in (("gpt2", {}), ("llama-gqa-tied", {"dtype": "float16"})):
        path = tmp_path / variant
        path.mkdir()
        build_checkpoint(path, variant)
        load_late(path, LateDevice(), fuse_norms=True, **flags)
    assert called["layer_norm"] > 0 < called["rms_norm"]
    assert called["norm_linear"] == 0
