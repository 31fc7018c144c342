"""Transformers' verdict on our outputs."""

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import torch
import transformers

CLEAR_MARGIN = 1e-3
"""Lead of the best logit over the second in float32 below which another order of additions may choose the other."""


_passed: WeakKeyDictionary["transformers.PreTrainedModel", set[tuple[tuple[int, ...], tuple[int, ...]]]] = (
    WeakKeyDictionary()
)
"""Prompts and outputs that need not be computed again: most schedules give the same."""


def assert_greedy(
    model: "transformers.PreTrainedModel", prompt: Sequence[int], output: Sequence[int], what: str
) -> None:
    """Each id of `output` is the model's best after all before it; a near tie may go either way, and is printed."""
    passed, both = _passed.setdefault(model, set()), (tuple(prompt), tuple(output))
    if both in passed:
        return
    with torch.inference_mode():
        logits = model(torch.tensor([[*prompt, *output[:-1]]])).logits[0, len(prompt) - 1 :]
    best = logits.topk(2)
    for index, token in enumerate(output):
        expected, margin = int(best.indices[index, 0]), float(best.values[index, 0] - best.values[index, 1])
        if token == expected:
            continue
        assert margin < CLEAR_MARGIN, f"{what}: output {index} is {token}, not {expected}, which leads by {margin:.4f}"
        print(f"{what}: output {index} is {token} instead of {expected}, a near tie (margin {margin:.1e})")
    passed.add(both)
