"""Describes a model of any family, layer by layer, as plain values. Needs no torch."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Protocol

from messages.errors import BootError
from scheduler_proc.computing.model.parameters import ByColumns, ByRows, Parameter, linear_parameters

CLASSIFIER_DENSE, CLASSIFIER_NORM, CLASSIFIER_OUT = "classifier_dense", "classifier_norm", "classifier_out"
"""Names of the parameters of a classification head."""


@dataclass(frozen=True, kw_only=True)
class RopeDescription:
    """Rotary positions of the first `part` of each head. The fields after `scaling` describe what is scaled how.

    With `proportional`, values i and i + head_dim / 2 of a head are a pair, and that part of the pairs is rotated.

    Cosines and sines are multiplied by `attention_factor`. `short_factors` and `long_factors` are those of `longrope`:
    each frequency is divided by its own. Queries of position p are multiplied by 1 + `query_growth` * ln(1 + floor(p /
    `original_max_positions`)).
    """

    theta: float
    part: float = 1.0
    scaling: Literal["default", "linear", "dynamic", "llama3", "yarn", "longrope", "proportional"] = "default"
    factor: float = 1.0
    original_max_positions: int = 0
    attention_factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    has_whole_bounds: bool = True
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()
    query_growth: float = 0.0

    def num_rotated(self, head_dim: int) -> int:
        """Returns the number of values of a head that have an angle, which may be 0."""
        return head_dim if self.scaling == "proportional" else int(head_dim * self.part)


@dataclass(frozen=True, kw_only=True)
class NormDescription:
    """A norm over `size` values. A layer norm has a bias if `has_bias`, an RMS norm has none.

    `is_zero_centered`: the norm multiplies by 1 + weight, as in Gemma. `replaces_stream`: a norm before a block also
    replaces the residual stream by the normed values, as in BERT.
    """

    kind: Literal["rms", "layer"]
    size: int
    eps: float
    is_zero_centered: bool = False
    has_bias: bool = True
    replaces_stream: bool = False


@dataclass(frozen=True, kw_only=True)
class AttentionDescription:
    """`qk_norm`: the norm of each query and key head, before rotation; with `norms_whole_qk`, instead, of all query
    heads together and of all key heads together. `norms_values`: that of each value head, without a weight. Without
    `rope` heads are not rotated. `kv_layer`: the layer whose K and V are read; this one has none of its own.
    `shares_kv_weight`: values are the keys before their norm and rotation; a checkpoint has one weight for both.

    `window`: the number of last tokens that a token attends to, itself included. `softcap`: scores become
    softcap * tanh(score / softcap). `has_sinks`: each head has a learned logit in the denominator of its softmax.
    `has_gate`: outputs are multiplied by the sigmoid of a linear. `is_bidirectional`: a token also attends to later
    tokens, all of its row's step, and `window` is then that to each side; nothing is cached.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    rope: RopeDescription | None = None
    qk_norm: NormDescription | None = None
    norms_whole_qk: bool = False
    norms_values: bool = False
    kv_layer: int | None = None
    shares_kv_weight: bool = False
    has_qkv_bias: bool = False
    has_out_bias: bool = False
    window: int | None = None
    softcap: float | None = None
    has_sinks: bool = False
    has_gate: bool = False
    is_bidirectional: bool = False

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads != 0:
            raise BootError(
                f"config.json: {self.num_heads} attention heads: not a multiple of {self.num_kv_heads} key/value heads"
            )
        if self.rope is not None:
            self._check_rope(self.rope)

    def _check_rope(self, rope: RopeDescription) -> None:
        rotated = self.num_rotated
        if rotated % 2 or not 0 < rotated <= self.head_dim:
            reason = f"rotary positions of {rotated} values per head of {self.head_dim}: an even number is needed"
            raise BootError(f"config.json: {reason}")
        if rope.scaling == "longrope":
            for factors in (rope.short_factors, rope.long_factors):
                if 2 * len(factors) != rotated:
                    raise BootError(f"config.json: {len(factors)} rope factors, not {rotated // 2}")

    @property
    def num_rotated(self) -> int:
        """The values of each head that are rotated, its first ones."""
        return 0 if self.rope is None else self.rope.num_rotated(self.head_dim)

    @property
    def heads(self) -> tuple[int, int, int]:
        """Query heads, key/value heads and values per head."""
        return self.num_heads, self.num_kv_heads, self.head_dim

    @property
    def kind(self) -> tuple[int, int, int, int | None]:
        """The heads and the window: a step has one plan for all layers of a kind."""
        return *self.heads, self.window

    @property
    def stores_kv(self) -> bool:
        return self.kv_layer is None and not self.is_bidirectional

    @property
    def query_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    @property
    def qkv_size(self) -> int:
        return self.query_size + (2 * self.kv_size if self.kv_layer is None else 0)

    def room_sizes(self, hidden_size: int) -> dict[str, int]:
        """Returns the values per token that it uses of `Activations`, except `attended`, by the names of its fields."""
        rotated = 2 * self.kv_size if self.is_bidirectional else 0
        return {"heads": self.qkv_size, "inner": max(self.query_size if self.has_gate else 0, rotated)}


@dataclass(frozen=True, kw_only=True)
class StatePart:
    """One tensor of a layer's recurrent state. A state has `shape` values, float32 or in the number format of
    activations."""

    name: str
    shape: tuple[int, ...]
    is_float32: bool


class RecurrentDescription(Protocol):
    """What computes a token from a state of fixed size. Descriptions of equal ones are equal."""

    block: ClassVar[str]
    """The name of the file in `blocks/` that computes it."""

    @property
    def state(self) -> tuple[StatePart, ...]:
        """The parts of a layer's state."""
        ...

    @property
    def out_size(self) -> int:
        """The values per token before its output projection: its room in `Activations.attended`."""
        ...

    def room_sizes(self, hidden_size: int) -> dict[str, int]:
        """Returns the values per token that it uses of `Activations`, by the names of its fields."""
        ...

    def divided(self, num_ranks: int) -> "RecurrentDescription":
        """Returns the part of one rank. Raises `BootError` if it cannot be divided."""
        ...

    def parameters(self, layer: str, hidden_size: int) -> list[Parameter]:
        """Returns the parameters of the block in the layer of this name."""
        ...


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
    activation: Literal["gelu_tanh", "gelu", "relu2", "silu_gated", "gelu_tanh_gated", "gelu_gated"]
    has_bias: bool = False
    block: ClassVar[str] = "dense_mlp"

    @property
    def is_gated(self) -> bool:
        return self.activation.endswith("_gated")

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
class ClassifierDescription:
    """A classification head on a pooled vector: `num_labels` outputs of a linear.

    With an `activation` a linear of the hidden size with it, and possibly a norm, are before that.
    """

    num_labels: int
    activation: Literal["tanh", "gelu"] | None = None
    has_dense_bias: bool = True
    norm: NormDescription | None = None
    has_bias: bool = True

    def parameters(self, hidden_size: int) -> list[Parameter]:
        has_dense, size = self.activation is not None, hidden_size
        shapes: dict[str, tuple[int, ...] | None] = {
            f"{CLASSIFIER_DENSE}.weight": (size, size) if has_dense else None,
            f"{CLASSIFIER_DENSE}.bias": (size,) if has_dense and self.has_dense_bias else None,
            f"{CLASSIFIER_NORM}.weight": (size,) if self.norm else None,
            f"{CLASSIFIER_NORM}.bias": (size,) if self.norm and self.norm.has_bias else None,
            f"{CLASSIFIER_OUT}.weight": (self.num_labels, size),
            f"{CLASSIFIER_OUT}.bias": (self.num_labels,) if self.has_bias else None,
        }
        return [Parameter(name, shape, "float32") for name, shape in shapes.items() if shape is not None]


@dataclass(frozen=True, kw_only=True)
class LayerDescription:
    """Attention, a recurrent block and an MLP, of which a layer may lack some. Their outputs are added to the stream.

    Attention and a recurrent block read the same input, the stream after `attention_norm`; if there are both, their
    outputs are added together.

    The norms before them apply to what they read, the norms after them (`…_out_norm`) to their outputs; each may be
    missing. If `is_parallel`, the MLP reads the layer's input as attention does, through its own norm or, without
    one, through attention's. `input_size`: the number of values per token that the layer gets in addition to the stream
    (`blocks/layer_inputs.py`); `input_norm` is that of what they add to it. `has_scale`: the stream is then multiplied
    by a number.
    """

    attention: AttentionDescription | None = None
    recurrent: RecurrentDescription | None = None
    mlp: MlpDescription | None = None
    attention_norm: NormDescription | None = None
    mlp_norm: NormDescription | None = None
    attention_out_norm: NormDescription | None = None
    mlp_out_norm: NormDescription | None = None
    is_parallel: bool = False
    input_size: int = 0
    input_norm: NormDescription | None = None
    has_scale: bool = False


MTP = "mtp"
"""Begins the names of the parameters of a head of multi-token prediction, and of its tensors in a checkpoint."""


@dataclass(frozen=True, kw_only=True)
class ModelDescription:
    """A decoder or an encoder. `num_positions`: rows of the table of learned positions, 0 if there is none; the first
    `num_unused_positions` belong to no token. `num_token_types`: rows of the table of token types. `num_buckets`: rows
    of the table of biases by distance, which all heads of all layers add to their scores.

    Embeddings of tokens are multiplied by `embedding_scale`, which may be rounded to their number format, and logits by
    `logit_scale`. `logit_softcap`: logits then become softcap * tanh(logit / softcap). `num_ranks`: if the model is
    divided among several, the layers are those of one rank (`sharding.py`). `layer_input_norm`: of each layer's part
    of the projected embedding, if layers have inputs of their own. `mtp`: the layer of a head of multi-token
    prediction (`model/mtp_decoder.py`); with one, the final hidden states of all tokens are kept, in pages.
    """

    vocab_size: int
    hidden_size: int
    layers: tuple[LayerDescription, ...]
    final_norm: NormDescription
    num_positions: int = 0
    num_unused_positions: int = 0
    num_token_types: int = 0
    num_buckets: int = 0
    classifier: ClassifierDescription | None = None
    has_tied_head: bool = False
    embedding_scale: float = 1.0
    rounds_embedding_scale: bool = False
    logit_scale: float = 1.0
    logit_softcap: float | None = None
    layer_input_norm: NormDescription | None = None
    num_ranks: int = 1
    mtp: LayerDescription | None = None

    def __post_init__(self) -> None:
        if all(layer.attention is None and layer.recurrent is None for layer in self.layers):
            raise BootError("config.json: no layer has attention or a recurrent block, so no token would read others")

    @property
    def vocab_part(self) -> int:
        """Entries of the vocabulary per rank; the last rank may have fewer, and padding."""
        return -(-self.vocab_size // self.num_ranks)

    @property
    def attentions(self) -> tuple[AttentionDescription, ...]:
        """The attention of each layer that has one over the KV cache. Layers may have different heads."""
        attentions = (layer.attention for layer in self.layers)
        return tuple(each for each in attentions if each is not None and not each.is_bidirectional)

    @property
    def recurrents(self) -> Mapping[int, RecurrentDescription]:
        """The recurrent blocks, by the index of the layer."""
        return {index: layer.recurrent for index, layer in enumerate(self.layers) if layer.recurrent is not None}

    @property
    def kv_layers(self) -> tuple[int | None, ...]:
        """The layer whose K and V each layer reads from the cache, mostly its own; `None` if it reads none."""
        return tuple(
            None
            if layer.attention is None or layer.attention.is_bidirectional
            else (index if layer.attention.kv_layer is None else layer.attention.kv_layer)
            for index, layer in enumerate(self.layers)
        )

    @property
    def is_encoder(self) -> bool:
        return any(layer.attention is not None and layer.attention.is_bidirectional for layer in self.layers)

    @property
    def last_storing(self) -> int:
        """The last layer in which tokens read others': of later ones only the head's tokens are needed."""
        if self.is_encoder:
            return len(self.layers) - 1
        return max({index for index in self.kv_layers if index is not None} | self.recurrents.keys())

    @property
    def attended_size(self) -> int:
        """The largest number of values per token that attention or a recurrent block has for its output linear."""
        outs = [layer.attention.query_size for layer in self.layers if layer.attention is not None]
        return max(outs + [recurrent.out_size for recurrent in self.recurrents.values()])

    def with_mtp(self) -> "ModelDescription":
        """Returns the model with a head of multi-token prediction, whose layer is like the last one that attends."""
        layer = next(layer for layer in reversed(self.layers) if layer.attention is not None)
        return replace(self, mtp=layer)

    @property
    def layer_inputs_size(self) -> int:
        """The values per token that all layers get in addition to the residual stream."""
        return sum(layer.input_size for layer in self.layers)
