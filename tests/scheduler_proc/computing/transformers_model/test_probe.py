"""Windows are read from masks' functions, and masks of other kinds are refused."""

import pytest
import torch
from transformers.masking_utils import (
    and_masks,
    causal_mask_function,
    chunked_causal_mask_function,
    sliding_window_bidirectional_mask_function,
    sliding_window_causal_mask_function,
)

from messages.errors import BootError
from scheduler_proc.computing.transformers_model.probe import find_window

CONTEXT = 1000
NO_PADDING = torch.zeros(1, dtype=torch.int64)


@pytest.mark.parametrize("context", [1, 2, CONTEXT])
def test_a_causal_mask(context: int) -> None:
    assert find_window(causal_mask_function, context) == context


@pytest.mark.parametrize("window", [1, 2, 128, 999, CONTEXT, 4096])
def test_a_sliding_window(window: int) -> None:
    assert find_window(sliding_window_causal_mask_function(window), CONTEXT) == min(window, CONTEXT)


def test_a_chunk_longer_than_the_context() -> None:
    assert find_window(chunked_causal_mask_function(CONTEXT, NO_PADDING), CONTEXT) == CONTEXT


@pytest.mark.parametrize("chunk", [1, 16, 500, 999])
def test_chunks_are_refused(chunk: int) -> None:
    if chunk == 1:  # is a window of one token
        assert find_window(chunked_causal_mask_function(chunk, NO_PADDING), CONTEXT) == 1
        return
    with pytest.raises(BootError, match="neither causal nor a sliding window in a context of 1000 tokens"):
        find_window(chunked_causal_mask_function(chunk, NO_PADDING), CONTEXT)


def test_later_tokens_and_holes_are_refused() -> None:
    with pytest.raises(BootError, match="neither causal"):
        find_window(sliding_window_bidirectional_mask_function(64), CONTEXT)
    holes = and_masks(causal_mask_function, lambda batch, head, query, key: (query - key) % 2 == 0)
    with pytest.raises(BootError, match="neither causal"):
        find_window(holes, CONTEXT)
