"""Fixtures that several packages' tests share, and how Triton runs in this process."""

import os
from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared"
HAS_CUDA_DRIVER = any(Path(device).exists() for device in ("/dev/nvidiactl", "/dev/dxg"))

if not HAS_CUDA_DRIVER:
    # Triton reads it when its own library of functions is imported, which any other package may do first.
    os.environ.setdefault("TRITON_INTERPRET", "1")

LONG_FILES = (
    *("kernels/cpu/test_sanitizers.py", "supervisor/test_supervisor.py", "supervisor/test_replacement.py"),
    *("supervisor/admin/test_handover.py", "test_launch.py", "frontend/requests/test_hold.py"),
    *("kernels/gpu/test_paged_decode.py", "detokenizer_proc/test_decoders.py", "scheduler_proc/test_greedy_tokens.py"),
    *("frontend/recovery/test_continuation.py", "frontend/test_process.py", "supervisor/model/test_fetch.py"),
    *("supervisor/cli/test_operate.py", "supervisor/admin/test_scaling.py", "scheduler_proc/test_overlap_soak.py"),
    *("frontend/http/test_h11_agreement.py", "benchmarks/test_run_gpu.py", "benchmarks/test_bench_footprint.py"),
    *("ring/test_restart.py", "ring/test_frontend_workers.py", "ring/test_soak.py", "ring/test_lost_frames.py"),
    *("ring/test_rolling_restart.py", "ring/test_hold.py", "ring/test_poison_workers.py", "ring/test_openapi.py"),
    *("ring/test_tokenizer_workers.py", "ring/test_browser.py", "ring/test_poison.py", "ring/test_chaos.py"),
)
"""Begin first, so that no worker is left alone with one at the end. A wrong order costs time and nothing else."""

RING_MARK = "mark.ring"
"""Every file with a test that starts a real server has this in it."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m ring` no other file is imported, which would take longer than most of those tests."""
    if config.option.markexpr != "ring" or collection_path.suffix != ".py":
        return None
    return RING_MARK not in collection_path.read_text(encoding="utf-8") or None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rank = {Path(__file__).parent / name: index for index, name in enumerate(LONG_FILES)}
    assert all(path.exists() for path in rank), [str(path) for path in rank if not path.exists()]
    items.sort(key=lambda item: rank.get(item.path, len(rank)))


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The read-only material beside the checkout: real models, tokenizers, prompts and traces."""
    if not SHARED.is_dir():
        pytest.skip("needs ../shared (real models, tokenizers, prompts) beside the checkout")
    return SHARED
