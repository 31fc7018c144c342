"""What a model's files say about its vectors and labels, as a part of the configuration."""

from typing import Literal

import msgspec

DtypeFlag = Literal["auto", "float32", "bfloat16", "float16"]
PoolingKind = Literal["cls", "mean", "last", "weighted_mean", "max"]


class DenseFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A linear layer between pooling and normalisation. `directory`: that of its weights, within the model's."""

    directory: str
    in_size: int
    out_size: int
    activation: Literal["identity", "tanh", "sigmoid", "relu", "gelu", "silu"] = "tanh"
    has_bias: bool = True


class PoolingFacts(msgspec.Struct, frozen=True, kw_only=True):
    """How token vectors become the model's answer, as sentence-transformers reads it from the model's files."""

    kind: Literal["embed", "classify"] | None = None
    """What the model is for: vectors, or the labels of its classification head. `None`: only text or logprobs."""
    pooling: PoolingKind = "last"
    normalizes: bool = True
    dense: tuple[DenseFacts, ...] = ()
    """Applied in this order to the pooled vector, before it is normalised."""
    prompts: dict[str, str] = {}
    """Texts to put before an input, by name, such as "query" and "document"."""
    default_prompt: str | None = None
    """The name of the prompt of an input for which no other is requested."""
    similarity: Literal["cosine", "dot", "euclidean", "manhattan"] = "cosine"
    max_seq_length: int | None = None
    """Longest input in tokens that the files name; `ModelFacts.max_model_len` is at most this by default."""
    labels: tuple[str, ...] = ()
    """The names of the classification head's outputs."""
    score_activation: Literal["identity", "sigmoid", "softmax"] | None = None
    """What turns the head's logits into scores, if the files name it."""
    score_token_ids: tuple[int, ...] = ()
    """The tokens whose logits a reranker without a head compares: "yes" and "no", or the first alone."""
    is_encoder: bool = False
    """Tokens also attend to later ones: inputs are computed whole, and nothing of them is kept."""
    is_float32: bool = False
    """The weights of an encoder are float32 in the model's files."""
    generates: bool = True
    """The model has a language-model head."""
    num_positions: int | None = None
    """Longest input that an encoder's table of positions allows."""
    truncate_dim: int = 0
    """The first values of a vector that are its answer if a request names no `dimensions`; 0: all."""
    is_regression: bool = False
    """The outputs of the classification head are numbers, not logits of labels."""


def choose_dtype(asked: DtypeFlag, pooling: PoolingFacts | None) -> DtypeFlag:
    """Returns `--dtype`, but float32 in place of auto for an encoder whose weights are: users compare its vectors.

    Its linear layers may still round the inputs of their products (decision 0168).
    """
    is_exact = asked == "auto" and pooling is not None and pooling.is_encoder and pooling.is_float32
    return "float32" if is_exact else asked
