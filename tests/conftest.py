"""Fixtures that several packages' tests share."""

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The read-only material beside the checkout: real models, tokenizers, prompts and traces."""
    if not SHARED.is_dir():
        pytest.skip("needs ../shared (real models, tokenizers, prompts) beside the checkout")
    return SHARED
