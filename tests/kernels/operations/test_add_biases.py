import random

import pytest
import torch

from kernels.operations.add_biases import add_biases
from tests.kernels.cases import DEVICES

INF = float("inf")


def run(logits: torch.Tensor, entries: list[tuple[int, int, float]], device: str) -> torch.Tensor:
    rows, ids, values = zip(*entries, strict=True)
    logits = logits.to(device, copy=True)
    columns = torch.tensor(rows), torch.tensor(ids, dtype=torch.int32), torch.tensor(values)
    add_biases(logits, *(column.to(device) for column in columns))
    return logits.cpu()


@pytest.mark.parametrize("device", DEVICES)
def test_biases_of_one_token_add_up(device: str) -> None:
    logits = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    entries = [(1, 0, 0.5), (0, 2, -INF), (1, 0, 0.25), (0, 0, -1.0), (1, 2, 8.0), (1, 2, -INF), (1, 0, 100.0)]
    assert run(logits, entries, device).tolist() == [[0.0, 2.0, -INF], [104.75, 5.0, -INF]]


@pytest.mark.parametrize("device", DEVICES)
def test_the_order_of_the_entries_does_not_show(device: str) -> None:
    chance = random.Random(0)
    logits = torch.randn(3, 20, generator=torch.Generator().manual_seed(0))
    entries = [(chance.randrange(3), chance.randrange(20), chance.uniform(-100, 100)) for _ in range(500)]
    first = run(logits, entries, device)
    for _ in range(5):
        chance.shuffle(entries)
        assert torch.equal(run(logits, entries, device), first)
    totals = torch.zeros(3, 20, dtype=torch.float64)
    for row, token, value in entries:
        totals[row, token] += value
    torch.testing.assert_close(first.double(), logits + totals, rtol=1e-6, atol=1e-4)
