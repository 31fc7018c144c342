"""The numbers that a request may want of its prompt in place of an output: vectors, classes, scores."""

from typing import Literal

import msgspec

from messages.columns import Int32s

PoolingKind = Literal["embed", "token_embed", "classify", "labels"]
PoolingWay = Literal["last", "cls", "mean", "weighted_mean", "max"]


class Pooling(msgspec.Struct, frozen=True, array_like=True):
    """Requests numbers that are computed from a prompt's hidden states, with `max_tokens` 0.

    `embed`: one vector, reduced to its first `dimensions` (0: all), then normalized if `normalizes` (`None`: as the
    model's files say). `token_embed`: such a vector of each token. `classify`: the logits of the model's classification
    head. `labels`: the logprobs of `label_ids` (int32) as the next token, under the whole vocabulary; the tokenizer
    appends the ids of `label_texts`, each of which must be one token.

    The frontend sets what depends on the model: `way`, by which the hidden states of `embed` and `classify` become one,
    and `is_whole`, if tokens also attend to later ones, so that the prompt must be computed in one step. The tokenizer
    sets `second_start`: from this position on, tokens belong to the second text (0: there is none, or the model does
    not distinguish them).
    """

    kind: PoolingKind
    dimensions: int = 0
    normalizes: bool | None = None
    label_ids: Int32s = b""
    label_texts: tuple[str, ...] = ()
    way: PoolingWay = "last"
    is_whole: bool = False
    second_start: int = 0
