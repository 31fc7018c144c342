"""Models with fp8 weights, of a checkpoint and by `--quantization fp8`: near what they are in float32."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kernels.formats import registry
from kernels.gpu.fusions import fuse
from scheduler_proc.computing.backends.cuda import loading
from tests.checkpoints import build_checkpoint
from tests.kernels.gpu.triton_in_use import DEVICE, triton_in_use
from tests.scheduler_proc.computing.backends.cuda.late_device import LateDevice
from tests.scheduler_proc.computing.backends.cuda.test_forward_passes import load_late
from tests.scheduler_proc.computing.drive import Schedule, generate
from tests.scheduler_proc.computing.loading.quantized.quantized_models import build_quantized
from tests.scheduler_proc.computing.test_load_runner import mean_logprob

PRODUCTS = pytest.mark.parametrize("fusions", [(), ("fp8_products",)], ids=["widened", "codes"])
IDS = list(range(60))


@pytest.fixture(autouse=True)
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Checkpoints in blocks get the format of a GPU."""
    monkeypatch.setattr(registry, "is_on_cpu", lambda device: False)
    yield
    fuse()


@PRODUCTS
@pytest.mark.parametrize("variant", ["gpt2", "qwen3-gqa-tied", "qwen2-mha-untied", "qwen3moe"])
def test_quantized_weights_are_near_the_model(variant: str, fusions: tuple[str, ...], tmp_path: Path) -> None:
    """With biases, GELUs, a tied head and experts; the dimensions do not fill a block of inputs."""
    build_checkpoint(tmp_path, variant)
    exact = mean_logprob(load_late(tmp_path, LateDevice(), num_pages=16), IDS)
    fuse(*fusions)
    near = mean_logprob(load_late(tmp_path, LateDevice(), num_pages=16, quantization="fp8"), IDS)
    assert 1e-6 < abs(near - exact) < 0.05


@PRODUCTS
@pytest.mark.parametrize("method", ["fp8", "compressed-tensors"])
def test_a_checkpoint_of_fp8_is_near_its_values(method: str, fusions: tuple[str, ...], tmp_path: Path) -> None:
    """A scale per block, and per output."""
    quantized, plain = tmp_path / "quantized", tmp_path / "plain"
    quantized.mkdir()
    plain.mkdir()
    build_quantized(quantized, plain, method)
    exact = mean_logprob(load_late(plain, LateDevice(), num_pages=16), IDS)
    fuse(*fusions)
    near = abs(mean_logprob(load_late(quantized, LateDevice(), num_pages=16), IDS) - exact)
    assert 1e-3 < near < 0.5 if fusions else near < 1e-3


@pytest.mark.skipif(DEVICE != "cpu", reason="the device's stand-in is on the CPU")
def test_tritons_kernels_compute_what_the_references_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts and decode rows, captured; a token's codes are the same in each."""
    monkeypatch.setattr(loading, "plan_warm_ups", lambda *arguments: [])  # seconds in the interpreter
    build_checkpoint(tmp_path, "qwen3-gqa-tied", num_hidden_layers=1)
    flags: dict[str, Any] = {"max_num_seqs": 2, "max_num_batched_tokens": 16, "max_model_len": 32, "num_pages": 16}
    prompts, schedule = [[5, 6, 7], list(range(12))], Schedule(chunk_tokens=7, stagger=1)
    fuse("fp8_products")
    expected = generate(load_late(tmp_path, LateDevice(), **flags, quantization="fp8"), prompts, 3, schedule)
    with triton_in_use(fusions=("fp8_products",)) as taken:
        found = generate(load_late(tmp_path, LateDevice(), **flags, quantization="fp8"), prompts, 3, schedule)
    assert found == expected
    assert {"scaled_linear", "quantize_rows"} <= set(taken)
