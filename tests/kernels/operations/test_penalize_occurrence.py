from collections import Counter

import pytest
import torch

from kernels.operations.penalize_occurrence import penalize_occurrence
from tests.kernels.cases import DEVICES

FREQUENCY, PRESENCE = [0.5, -1.5, 0.0, 2.0], [0.0, 0.25, -2.0, 1.0]


@pytest.mark.parametrize("device", DEVICES)
def test_tokens_pay_for_each_occurrence_and_once_for_being_there(device: str) -> None:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(4, 30, generator=generator)
    rows = torch.randint(0, 4, (200,), generator=generator)
    ids = torch.randint(0, 12, (200,), generator=generator, dtype=torch.int32)
    expected = logits.clone()
    for (row, token), count in Counter(zip(rows.tolist(), ids.tolist(), strict=True)).items():
        expected[row, token] -= count * FREQUENCY[row] + PRESENCE[row]
    ours = logits.to(device, copy=True)
    columns = rows, ids, torch.tensor(FREQUENCY)[rows], torch.tensor(PRESENCE)[rows]
    penalize_occurrence(ours, *(column.to(device) for column in columns))
    torch.testing.assert_close(ours.cpu(), expected, rtol=1e-6, atol=1e-5)
    assert torch.equal(ours.cpu()[:, 12:], logits[:, 12:])
