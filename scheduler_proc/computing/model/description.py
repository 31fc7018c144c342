"""Describes a model of any family, layer by layer. Plain values, no torch."""

from dataclasses import dataclass
from typing import Literal

from messages.errors import BootError


@dataclass(frozen=True, kw_only=True)
class RopeDescription:
    """Rotary positions. `factor` and the fields after it describe the scalings `linear` and `llama3`."""

    theta: float
    scaling: Literal["default", "linear", "llama3"] = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 0


@dataclass(frozen=True, kw_only=True)
class NormDescription:
    """A norm over `size` values. A layer norm has a bias, an RMS norm has none."""

    kind: Literal["rms", "layer"]
    size: int
    eps: float


@dataclass(frozen=True, kw_only=True)
class AttentionDescription:
    """`qk_norm`: the norm of each query and key head, before rotation. Without `rope` heads are not rotated."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    rope: RopeDescription | None = None
    qk_norm: NormDescription | None = None
    has_qkv_bias: bool = False
    has_out_bias: bool = False

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads != 0:
            raise BootError(
                f"config.json: {self.num_heads} attention heads: not a multiple of {self.num_kv_heads} key/value heads"
            )
        if self.rope is not None and self.head_dim % 2 != 0:
            raise BootError(f"config.json: rotary positions need an even head size, not {self.head_dim}")

    @property
    def query_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    @property
    def qkv_size(self) -> int:
        return self.query_size + 2 * self.kv_size


@dataclass(frozen=True, kw_only=True)
class MlpDescription:
    """A dense MLP with `size` inner values."""

    size: int
    activation: Literal["gelu_tanh", "gelu", "silu_gated"]
    has_bias: bool = False

    @property
    def is_gated(self) -> bool:
        return self.activation == "silu_gated"

    @property
    def in_size(self) -> int:
        """Outputs of the first linear: a gated MLP has the gate's, then those that it gates."""
        return 2 * self.size if self.is_gated else self.size


@dataclass(frozen=True, kw_only=True)
class LayerDescription:
    """Norm, attention, norm, MLP: attention's and the MLP's outputs are added to the residual stream."""

    attention_norm: NormDescription
    attention: AttentionDescription
    mlp_norm: NormDescription
    mlp: MlpDescription


@dataclass(frozen=True, kw_only=True)
class ModelDescription:
    """A decoder. `num_positions`: rows of the table of learned positions, 0 if there is none.

    `num_ranks`: if the model is divided among several, the layers are those of one rank (`sharding.py`).
    """

    vocab_size: int
    hidden_size: int
    layers: tuple[LayerDescription, ...]
    final_norm: NormDescription
    num_positions: int = 0
    has_tied_head: bool = False
    num_ranks: int = 1

    @property
    def vocab_part(self) -> int:
        """Entries of the vocabulary per rank; the last rank may have fewer, and padding."""
        return -(-self.vocab_size // self.num_ranks)

    @property
    def attention(self) -> AttentionDescription:
        """The attention of all layers. Raises `BootError` if they differ: the KV cache has one shape for all."""
        first, *others = (layer.attention for layer in self.layers)
        if any(other != first for other in others):
            raise BootError("config.json: layers with different attention are not supported")
        return first

    @property
    def mlp(self) -> MlpDescription:
        """The MLP of all layers. Raises `BootError` if they differ: they share the room for their activations."""
        first, *others = (layer.mlp for layer in self.layers)
        if any(other != first for other in others):
            raise BootError("config.json: layers with different MLPs are not supported")
        return first
