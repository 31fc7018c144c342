"""Texts to be pooled, with the tokenizer's special tokens around them: joined in pairs, truncated between these tokens.

The ids are those of sentence-transformers: a truncated text keeps its end token; of two texts the longer one is cut.
"""

from typing import Any, NamedTuple

from tokenizers import Tokenizer

from messages.ring.requests import TruncationSide


class Texts(NamedTuple):
    """One text or two, truncated to `num_kept` tokens in all (`None`: not at all); `side` is where tokens are cut."""

    text: str
    pair: str | None
    add_special_tokens: bool = True
    num_kept: int | None = None
    side: TruncationSide = "right"


class JoinedTexts(NamedTuple):
    """`second_start`: where the tokens begin that the tokenizer marks as the second text's; 0 without such marks."""

    ids: list[int]
    second_start: int


def join_texts(tokenizer: Tokenizer, texts: Texts) -> JoinedTexts:
    """Returns the ids that the tokenizer gives these texts."""
    both = [texts.text] if texts.pair is None else [texts.text, texts.pair]
    encodings = tokenizer.encode_batch_fast(both, add_special_tokens=False)
    if texts.num_kept is not None:
        num_special = tokenizer.num_special_tokens_to_add(len(both) > 1) if texts.add_special_tokens else 0
        sizes = _share([len(encoding.ids) for encoding in encodings], max(0, texts.num_kept - num_special))
        for encoding, size in zip(encodings, sizes, strict=True):
            encoding.truncate(size, direction=texts.side)
    joined = tokenizer.post_process(encodings[0], encodings[1] if len(both) > 1 else None, texts.add_special_tokens)
    return _mark(joined.ids, joined.type_ids)


def join_by_transformers(loaded: Any, texts: Texts) -> JoinedTexts:
    """The same for a tokenizer that only the package transformers has."""
    loaded.truncation_side = texts.side
    truncation = False if texts.num_kept is None else "longest_first"
    joined = loaded(
        texts.text,
        texts.pair,
        add_special_tokens=texts.add_special_tokens,
        truncation=truncation,
        max_length=texts.num_kept,
        return_token_type_ids=True,
        verbose=False,
    )
    return _mark(joined["input_ids"], joined.get("token_type_ids", []))


def _share(sizes: list[int], num_kept: int) -> list[int]:
    """Returns how many tokens each text keeps: the longer one loses tokens until both are equal, then both do."""
    if sum(sizes) <= num_kept:
        return sizes
    if len(sizes) == 1:
        return [num_kept]
    shorter = min(*sizes, num_kept // 2)
    kept = shorter, num_kept - shorter
    return [*kept] if sizes[0] <= sizes[1] else [*reversed(kept)]


def _mark(ids: list[int], type_ids: list[int]) -> JoinedTexts:
    return JoinedTexts(ids, type_ids.index(1) if 1 in type_ids else 0)
