"""What `take_tokens` must do, for each of its triton_kernels."""

import torch

from kernels.operations.take_tokens import take_tokens

# (tokens, sources, sampled, tokens afterwards)
CASES = [
    ([0], [0], [7], [7]),
    ([10, 11, 12, 13, 14], [1, -1, 0], [5, -1], [0, 11, 5, 13, 14]),
    ([1, 2], [-1, -1], [9, 9], [1, 2]),
    ([3, 4], [], [9], [3, 4]),
    ([3, 4], [-1], [], [3, 4]),
    (list(range(300)), [-1 if row % 3 else 299 - row for row in range(299)], list(range(1000, 1300)), None),
]


def check(case: int, dtype: torch.dtype, device: str) -> None:
    tokens, sources, sampled, expected = CASES[case]
    if expected is None:
        expected = [1299 - row if row < 299 and row % 3 == 0 else row for row in range(300)]
    tokens_T = torch.tensor(tokens, dtype=torch.int32, device=device)
    sources_D = torch.tensor(sources, dtype=torch.int32, device=device)
    take_tokens(tokens_T, sources_D, torch.tensor(sampled, dtype=dtype, device=device))
    assert tokens_T.tolist() == expected
