"""Several models of one server share a GPU, also while one makes room for another."""

from pathlib import Path

import pytest
import torch

from tests.ring.client import Generated, body
from tests.ring.model_ring import NAMES, model_ring, write_models

pytestmark = [
    pytest.mark.ring,
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

PROMPT = list(range(3, 40))


def replies_on(device: str, folder: Path) -> list[list[Generated]]:
    """Two models at once, a third, for which one of them is unloaded, and each again."""
    with model_ring("--models", str(folder), "--device", device) as (_, ring):
        requests = [body(PROMPT, max_tokens=20, model=name) for name in NAMES]
        groups = requests[:2], requests[2:], requests[:1], requests[1:2]
        return [ring.generate_all(group) for group in groups]


def test_their_tokens_are_those_of_a_cpu(tmp_path: Path):
    write_models(tmp_path)
    expected, found = (replies_on(device, tmp_path) for device in ("cpu", "cuda"))
    assert [[one.token_ids for one in group] for group in found] == [
        [one.token_ids for one in group] for group in expected
    ]
