"""Fixtures that several packages' tests share, and how Triton runs in this process."""

import os
from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared"
HAS_CUDA_DRIVER = any(Path(device).exists() for device in ("/dev/nvidiactl", "/dev/dxg"))

if not HAS_CUDA_DRIVER:
    # Triton reads it when its own library of functions is imported, which any other package may do first.
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The read-only material beside the checkout: real models, tokenizers, prompts and traces."""
    if not SHARED.is_dir():
        pytest.skip("needs ../shared (real models, tokenizers, prompts) beside the checkout")
    return SHARED
