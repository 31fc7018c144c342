"""Describes a model of any family, layer by layer, as plain values. Needs no torch."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Protocol

from messages.errors import BootError
from scheduler_proc.computing.model.parameters import ByColumns, ByRows, Parameter, linear_parameters


@dataclass(frozen=True, kw_only=True)
class RopeDescription:
    """Rotary positions. `factor` and the fields after it describe the scalings `linear` and `llama3`.

    `factors` are those of `longrope`: each frequency is divided by its own.
    """

    theta: float
    scaling: Literal["default", "linear", "llama3", "longrope"] = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 0
    factors: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class NormDescription:
    """A norm over `size` values. A layer norm has a bias, an RMS norm has none.

    `is_zero_centered`: the norm multiplies by 1 + weight, as in Gemma.
    """

    kind: Literal["rms", "layer"]
    size: int
    eps: float
    is_zero_centered: bool = False


@dataclass(frozen=True, kw_only=True)
class AttentionDescription:
    """`qk_norm`: the norm of each query and key head, before rotation. Without `rope` heads are not rotated.

    `window`: the number of last tokens that a token attends to, itself included. `softcap`: scores become
    softcap * tanh(score / softcap). `has_sinks`: each head has a learned logit in the denominator of its softmax.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    rope: RopeDescription | None = None
    qk_norm: NormDescription | None = None
    has_qkv_bias: bool = False
    has_out_bias: bool = False
    window: int | None = None
    softcap: float | None = None
    has_sinks: bool = False

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads != 0:
            raise BootError(
                f"config.json: {self.num_heads} attention heads: not a multiple of {self.num_kv_heads} key/value heads"
            )
        if self.rope is not None and self.head_dim % 2 != 0:
            raise BootError(f"config.json: rotary positions need an even head size, not {self.head_dim}")
        if self.rope is not None and self.rope.factors and 2 * len(self.rope.factors) != self.head_dim:
            raise BootError(f"config.json: {len(self.rope.factors)} rope factors, not {self.head_dim // 2}")

    @property
    def heads(self) -> tuple[int, int, int]:
        """Query heads, key/value heads and values per head."""
        return self.num_heads, self.num_kv_heads, self.head_dim

    @property
    def query_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    @property
    def qkv_size(self) -> int:
        return self.query_size + 2 * self.kv_size


class MlpDescription(Protocol):
    """An MLP of some kind. Descriptions of equal MLPs are equal."""

    block: ClassVar[str]
    """The name of the file in `blocks/` that computes it."""

    def room_sizes(self, hidden_size: int) -> dict[str, int]:
        """Returns the values per token that it uses of `Activations`, by the names of its fields."""
        ...

    def divided(self, num_ranks: int) -> "MlpDescription":
        """Returns the part of one rank. Raises `BootError` if it cannot be divided."""
        ...

    def parameters(self, layer: str, hidden_size: int) -> list[Parameter]:
        """Returns the parameters of the MLP in the layer of this name."""
        ...


@dataclass(frozen=True, kw_only=True)
class DenseMlpDescription:
    """A dense MLP with `size` inner values."""

    size: int
    activation: Literal["gelu_tanh", "gelu", "silu_gated"]
    has_bias: bool = False
    block: ClassVar[str] = "dense_mlp"

    @property
    def is_gated(self) -> bool:
        return self.activation == "silu_gated"

    @property
    def in_size(self) -> int:
        """Outputs of the first linear: a gated MLP has the gate's, then those that it gates."""
        return 2 * self.size if self.is_gated else self.size

    def room_sizes(self, hidden_size: int) -> dict[str, int]:
        return {"inner": self.in_size, "gated": self.size if self.is_gated else 0}

    def divided(self, num_ranks: int) -> "DenseMlpDescription":
        if self.size % num_ranks:
            raise BootError(
                f"--tensor-parallel {num_ranks}: it does not divide the model's {self.size} columns of the MLP"
            )
        return replace(self, size=self.size // num_ranks)

    def parameters(self, layer: str, hidden_size: int) -> list[Parameter]:
        by_inner = ByRows(((self.size, 1),) * (self.in_size // self.size))
        return [
            *linear_parameters(f"{layer}.mlp_in", self.in_size, hidden_size, self.has_bias, by_inner),
            *linear_parameters(f"{layer}.mlp_out", hidden_size, self.size, self.has_bias, ByColumns()),
        ]


@dataclass(frozen=True, kw_only=True)
class LayerDescription:
    """Attention and an MLP, whose outputs are added to the residual stream.

    The norms before them apply to what they read, the norms after them (`…_out_norm`) to their outputs; each may be
    missing. If `is_parallel`, the MLP reads the layer's input as attention does, through its own norm or, without
    one, through attention's.
    """

    attention_norm: NormDescription | None
    attention: AttentionDescription
    mlp_norm: NormDescription | None
    mlp: MlpDescription
    attention_out_norm: NormDescription | None = None
    mlp_out_norm: NormDescription | None = None
    is_parallel: bool = False


@dataclass(frozen=True, kw_only=True)
class ModelDescription:
    """A decoder. `num_positions`: rows of the table of learned positions, 0 if there is none.

    Embeddings of tokens are multiplied by `embedding_scale`, logits by `logit_scale`. `logit_softcap`: logits then
    become softcap * tanh(logit / softcap). `num_ranks`: if the model is divided among several, the layers are those of
    one rank (`sharding.py`).
    """

    vocab_size: int
    hidden_size: int
    layers: tuple[LayerDescription, ...]
    final_norm: NormDescription
    num_positions: int = 0
    has_tied_head: bool = False
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    logit_softcap: float | None = None
    num_ranks: int = 1

    @property
    def vocab_part(self) -> int:
        """Entries of the vocabulary per rank; the last rank may have fewer, and padding."""
        return -(-self.vocab_size // self.num_ranks)

    @property
    def windows(self) -> tuple[int | None, ...]:
        """The windows of the layers, each once."""
        return tuple(dict.fromkeys(layer.attention.window for layer in self.layers))

    @property
    def attention(self) -> AttentionDescription:
        """The first layer's attention, whose heads all layers have.

        Raises `BootError` if another layer has other heads: the KV cache and the plans of a step have one shape.
        """
        first = self.layers[0].attention
        for index, layer in enumerate(self.layers):
            if layer.attention.heads != first.heads:
                raise BootError(
                    f"config.json: layer {index} has {layer.attention.heads} query heads, key/value heads and values "
                    f"per head, layer 0 has {first.heads}: layers with different heads are not supported"
                )
        return first
