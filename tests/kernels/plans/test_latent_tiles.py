"""Every new token meets each of its keys once, within the capacity of the list, however tiles are cut."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.plans import latent_tiles
from kernels.plans.latent_tiles import MIN_PIECE_KEYS, LatentLayout, LatentTiles, plan_latent_work
from kernels.plans.prefill_tiles import TILE_WORDS

ROWS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 3000)), max_size=6)
POISON = np.iinfo(np.int32).max


@settings(deadline=None, max_examples=100)
@given(ROWS, st.sampled_from([1, 4, 16]), st.sampled_from([1, 5, 300]), st.sampled_from([0, 64]))
def test_every_token_meets_its_keys_once(
    rows: list[tuple[int, int]], tile_tokens: int, num_blocks: int, split_keys: int
) -> None:
    tiles = LatentTiles(tile_tokens, num_blocks, split_keys)
    query_lens, context_lens = (np.array([row[each] for row in rows], np.int32) for each in (0, 1))
    lines = np.full((tiles.max_lines(int(query_lens.sum()), len(rows)), TILE_WORDS), POISON, np.int32)
    tiles.plan(query_lens, context_lens, lines)
    pieces, cut = tiles.split_list(lines)
    num_pieces = int((pieces[:, 0] >= 0).sum())
    assert (pieces[num_pieces:, 0] == -1).all()
    pieces = pieces[:num_pieces]
    assert (pieces[:, 4] < pieces[:, 5]).all()
    first_tokens = query_lens.cumsum() - query_lens
    seen: dict[int, list[tuple[int, int, int]]] = {}
    for row, position, first_token, num_tokens, first_key, end_key, part, _ in pieces.tolist():
        assert 1 <= num_tokens <= tile_tokens
        assert position - context_lens[row] == first_token - first_tokens[row]
        assert first_key % (split_keys or MIN_PIECE_KEYS) == 0
        for token in range(first_token, first_token + num_tokens):
            seen.setdefault(token, []).append((first_key, end_key, part))
            assert end_key <= position + num_tokens
    tokens = [(row, own) for row, (num_new, _) in enumerate(rows) for own in range(num_new)]
    groups = {line[0] + own: line for line in cut.tolist() for own in range(line[1])}
    for token, (row, own) in enumerate(tokens):
        found = sorted(seen[token])
        assert [first for first, _, _ in found] == [0, *(end for _, end, _ in found[:-1])]
        assert found[-1][1] >= context_lens[row] + own + 1
        parts = [part for _, _, part in found]
        _, _, first_part, end_part = groups.get(token, [0] * 8)[:4]
        assert parts == (list(range(first_part, end_part)) if len(found) > 1 else [-1])
        assert end_part <= tiles.max_parts
        if split_keys:
            assert all(end - first <= split_keys for first, end, _ in found[1:])


def test_one_long_row_is_spread_over_the_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """By fixed launches, too: each piece except the first is one split."""
    monkeypatch.setattr(latent_tiles, "NUM_PROGRAMS", 8)
    for split_keys, expected in ((0, [(0, 256), (256, 512), (512, 768), (768, 1001)]), (512, [(0, 512), (512, 1001)])):
        layout = LatentLayout(LatentTiles(1, 2, split_keys), max_rows=3)
        words = np.full(layout.num_words, POISON, np.int32)
        plan_latent_work(layout, np.array([1001, 0], np.int32), np.zeros((2, 1)), 16, words)
        pieces = words.reshape(-1, TILE_WORDS)[: len(expected) + 1]
        assert sorted(map(tuple, pieces[:-1, 4:6].tolist())) == expected
        assert pieces[:, 0].tolist() == [0] * len(expected) + [-1]
