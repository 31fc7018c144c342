"""What a decoder is, whatever family it comes from, and the parameters that follow from it. Plain values, no torch."""

from dataclasses import dataclass
from typing import Literal

from messages.errors import BootError

Shape = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class RopeConfig:
    """Rotary positions. `factor` and what follows it describe the scalings `linear` and `llama3`."""

    theta: float
    scaling: Literal["default", "linear", "llama3"] = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 0


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """A decoder of `num_layers` blocks: norm, attention, norm, MLP, each pair added to the residual stream.

    `learned_positions` is the number of rows of the position table, 0 for rotary positions (`rope` is set then).
    `has_qk_norm`: each query and key head is RMS-normed, with `norm_eps`, before it is turned by its position.
    `num_ranks`: of a decoder that is divided among several, heads and MLP are those of one (`sharding.py`).
    """

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    mlp_size: int
    norm: Literal["rms", "layer"]
    norm_eps: float
    activation: Literal["gelu_tanh", "gelu", "silu_gated"]
    attention_scale: float
    rope: RopeConfig | None = None
    learned_positions: int = 0
    has_qk_norm: bool = False
    has_qkv_bias: bool = False
    has_attention_out_bias: bool = False
    has_mlp_bias: bool = False
    has_tied_head: bool = False
    num_ranks: int = 1

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads != 0:
            raise BootError(
                f"config.json: {self.num_heads} attention heads are no multiple of {self.num_kv_heads} key/value heads"
            )
        if self.rope is not None and self.head_dim % 2 != 0:
            raise BootError(f"config.json: rotary positions need an even head size, not {self.head_dim}")
        assert (self.rope is None) == (self.learned_positions > 0)

    @property
    def qkv_size(self) -> int:
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim

    @property
    def vocab_part(self) -> int:
        """Entries of the vocabulary for which a rank has embeddings; the last rank's may be filling in part."""
        return -(-self.vocab_size // self.num_ranks)

    @property
    def mlp_in_size(self) -> int:
        return 2 * self.mlp_size if self.activation == "silu_gated" else self.mlp_size


def parameter_shapes(config: DecoderConfig) -> dict[str, Shape]:
    """Returns the shape of every parameter by name; a linear's weight is [out, in]. A tied head is no parameter."""
    hidden = config.hidden_size
    shapes: dict[str, Shape] = {"embedding": (config.vocab_part, hidden)}
    if config.learned_positions:
        shapes["position_embedding"] = (config.learned_positions, hidden)
    attended = config.num_heads * config.head_dim
    for index in range(config.num_layers):
        layer = f"layers.{index}"
        shapes |= _norm_shapes(f"{layer}.attention_norm", config)
        shapes |= _linear_shapes(f"{layer}.qkv", config.qkv_size, hidden, config.has_qkv_bias)
        if config.has_qk_norm:
            shapes |= {f"{layer}.{name}.weight": (config.head_dim,) for name in ("query_norm", "key_norm")}
        shapes |= _linear_shapes(f"{layer}.attention_out", hidden, attended, config.has_attention_out_bias)
        shapes |= _norm_shapes(f"{layer}.mlp_norm", config)
        shapes |= _linear_shapes(f"{layer}.mlp_in", config.mlp_in_size, hidden, config.has_mlp_bias)
        shapes |= _linear_shapes(f"{layer}.mlp_out", hidden, config.mlp_size, config.has_mlp_bias)
    shapes |= _norm_shapes("final_norm", config)
    if not config.has_tied_head:
        shapes["head"] = (config.vocab_part, hidden)
    return shapes


def _norm_shapes(name: str, config: DecoderConfig) -> dict[str, Shape]:
    shapes: dict[str, Shape] = {f"{name}.weight": (config.hidden_size,)}
    if config.norm == "layer":
        shapes[f"{name}.bias"] = (config.hidden_size,)
    return shapes


def _linear_shapes(name: str, num_out: int, num_in: int, has_bias: bool) -> dict[str, Shape]:
    shapes: dict[str, Shape] = {f"{name}.weight": (num_out, num_in)}
    if has_bias:
        shapes[f"{name}.bias"] = (num_out,)
    return shapes
