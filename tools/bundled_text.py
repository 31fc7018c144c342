"""The text side of the bundled model: its byte-level BPE, its training windows and its held-out windows.

Shapes: B rows, L tokens of a window.
"""

import json
import re
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

END_OF_TEXT = "<|endoftext|>"
MEAN_PIECE_PARAGRAPHS = 24
"""Paragraphs between two end-of-text tokens in the training stream, on average."""

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Corpus:
    """A text split in training tokens and held-out tokens."""

    train_ids: Ids
    held_out_ids: Ids
    held_out_bytes: int
    starts: Ids
    """Indices in train_ids of the first token of each paragraph."""
    ends: Ids
    """Index in train_ids after the last token of each paragraph."""
    end_of_text_id: int
    splits: Ids
    """[V, 2]: the two tokens that were merged into each token; -1, -1 for the bytes and the special token."""


@dataclass(frozen=True)
class Window:
    """One training batch, all int64 of shape [B, L]."""

    input_ids: torch.Tensor
    target_ids: torch.Tensor
    positions: torch.Tensor


def split_text(text: str, held_out_share: float) -> tuple[str, str]:
    """Cut off the last `held_out_share` of the text, at the end of a line if possible."""
    cut = int(len(text) * (1 - held_out_share))
    line_end = text.rfind("\n", cut // 2, cut)
    cut = line_end + 1 if line_end >= 0 else cut
    return text[:cut], text[cut:]


def train_tokenizer(text: str, vocab_size: int) -> Tokenizer:
    """Return a GPT-2-like byte-level BPE; every byte has a token, so any UTF-8 comes back from its ids."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([text], trainer)
    return tokenizer


def build_corpus(text: str, tokenizer: Tokenizer, held_out_share: float) -> Corpus:
    """Encode both parts of the text and find the paragraphs (parted by blank lines) of the training part."""
    train_text, held_out_text = split_text(text, held_out_share)
    vocab = tokenizer.get_vocab()
    encoding = tokenizer.encode(train_text)
    token_chars = np.array([first for first, _ in encoding.offsets], dtype=np.int64)
    breaks = [match.span() for match in re.finditer(r"\n\s*\n", train_text)]
    starts = np.searchsorted(token_chars, [0, *(end for _, end in breaks)])
    ends = np.searchsorted(token_chars, [*(start for start, _ in breaks), len(train_text)])
    return Corpus(
        train_ids=np.array(encoding.ids, dtype=np.int64),
        held_out_ids=np.array(tokenizer.encode(held_out_text).ids, dtype=np.int64),
        held_out_bytes=len(held_out_text.encode()),
        starts=starts.clip(max=len(encoding.ids) - 1),
        ends=ends,
        end_of_text_id=vocab[END_OF_TEXT],
        splits=read_merges(tokenizer),
    )


def read_merges(tokenizer: Tokenizer) -> Ids:
    """Return, for each token id, the two ids that its merge joined; -1, -1 without a merge."""
    split_V2 = np.full((tokenizer.get_vocab_size(), 2), -1, dtype=np.int64)
    vocab = tokenizer.get_vocab()
    for left, right in json.loads(tokenizer.to_str())["model"]["merges"]:
        split_V2[vocab[left + right]] = vocab[left], vocab[right]
    return split_V2


def undo_merges(ids: Ids, split_V2: Ids, share: float, rng: np.random.Generator) -> Ids:
    """Return the same text with about `share` of the tokens split in two, twice over: spellings as by
    BPE-dropout (Provilkov et al. 2020, section 3), which `tokenizers` offers but cannot seed."""
    for _ in range(2):
        is_split = (rng.random(len(ids)) < share) & (split_V2[ids, 0] >= 0)
        place = np.arange(len(ids)) + np.cumsum(is_split) - is_split
        longer = np.empty(len(ids) + int(is_split.sum()), dtype=np.int64)
        longer[place] = np.where(is_split, split_V2[ids, 0], ids)
        longer[place[is_split] + 1] = split_V2[ids[is_split], 1]
        ids = longer
    return ids


def draw_row(corpus: Corpus, num_tokens: int, rng: np.random.Generator) -> Ids:
    """Return exactly `num_tokens` training tokens: runs of whole paragraphs parted by end-of-text.

    Half of the rows begin anywhere, a quarter with a paragraph, a quarter with end-of-text.
    """
    kind = rng.random()
    pieces = [np.array([corpus.end_of_text_id])] if kind < 0.25 else []
    begins_anywhere = kind >= 0.5
    filled = len(pieces)
    while filled < num_tokens:
        if begins_anywhere:
            start = int(rng.integers(len(corpus.train_ids)))
            paragraph = max(0, int(np.searchsorted(corpus.starts, start, side="right")) - 1)
        else:
            paragraph = int(rng.integers(len(corpus.starts)))
            start = int(corpus.starts[paragraph])
        begins_anywhere = False
        last = min(paragraph + int(rng.geometric(1 / MEAN_PIECE_PARAGRAPHS)), len(corpus.ends)) - 1
        piece = corpus.train_ids[start : corpus.ends[last]]
        pieces += [piece, np.array([corpus.end_of_text_id])]
        filled += len(piece) + 1
    return np.concatenate(pieces)[:num_tokens]


def draw_window(
    corpus: Corpus, context: int, batch_tokens: int, split_share: float, rng: np.random.Generator
) -> Window:
    """Return a batch of about `batch_tokens` in rows of one length: an eighth to all of the context.

    Half of the rows of a shorter window stand at a random offset, so that every position is trained often;
    half of all rows have some merges undone.
    """
    length = context // int(rng.choice([8, 4, 2, 1]))
    ids, positions = [], []
    for _ in range(max(1, batch_tokens // length)):
        row = draw_row(corpus, length + 1, rng)
        if split_share > 0 and rng.random() < 0.5:
            row = undo_merges(row, corpus.splits, split_share, rng)[: length + 1]
        offset = int(rng.integers(context - length + 1)) if rng.random() < 0.5 else 0
        ids.append(row)
        positions.append(np.arange(offset, offset + length))
    rows_BL1 = torch.from_numpy(np.stack(ids))
    return Window(rows_BL1[:, :-1], rows_BL1[:, 1:], torch.from_numpy(np.stack(positions)))


def held_out_windows(corpus: Corpus, context: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return (input, target) pairs of shape [1, <= context] that predict each held-out token exactly once."""
    ids = torch.from_numpy(np.concatenate([[corpus.end_of_text_id], corpus.held_out_ids]))[None]
    return [
        (ids[:, first : first + context][:, : ids.shape[1] - 1 - first], ids[:, first + 1 : first + 1 + context])
        for first in range(0, ids.shape[1] - 1, context)
    ]
