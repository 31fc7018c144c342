"""Describes a model of any family, layer by layer, as plain values. Needs no torch."""

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Literal, Protocol, Self, TypeVar

from messages.errors import BootError
from scheduler_proc.computing.model.parameters import ByColumns, ByRows, Parameter, divide, linear_parameters

NUM_AXES = 3
"""Positions of images have an axis for time, line and column."""

CLASSIFIER_DENSE, CLASSIFIER_NORM, CLASSIFIER_OUT = "classifier_dense", "classifier_norm", "classifier_out"
"""Names of the parameters of a classification head."""


@dataclass(frozen=True, kw_only=True)
class RopeDescription:
    """Rotary positions of the first `part` of each head. The fields after `scaling` describe what is scaled how.

    With `proportional`, values i and i + head_dim / 2 of a head are a pair, and that part of the pairs is rotated.

    Cosines and sines are multiplied by `attention_factor`. `short_factors` and `long_factors` are those of `longrope`:
    each frequency is divided by its own. Queries of position p are multiplied by 1 + `query_growth` * ln(1 + floor(p /
    `original_max_positions`)).

    `axes`: the axis of each pair's position, for positions with three: time, line and column, equal for text.
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
    axes: tuple[int, ...] = ()

    def num_rotated(self, head_dim: int) -> int:
        """Returns the number of values of a head that have an angle, which may be 0."""
        return head_dim if self.scaling == "proportional" else int(head_dim * self.part)


@dataclass(frozen=True, kw_only=True)
class NormDescription:
    """A norm over `size` values. A layer norm has a bias if `has_bias`, an RMS norm has none. `scale`, after a block,
    only multiplies by the weight.

    `is_zero_centered`: the norm multiplies by 1 + weight, as in Gemma. `replaces_stream`: a norm before a block also
    replaces the residual stream by the normed values, as in BERT.
    """

    kind: Literal["rms", "layer", "scale"]
    size: int
    eps: float = 0.0
    is_zero_centered: bool = False
    has_bias: bool = True
    replaces_stream: bool = False


@dataclass(frozen=True)
class CachePart:
    """One tensor of what a mixer keeps: `shape` values for each token in the KV cache, or for each recurrent state.

    `number`: they have the number format of the cache, which may be codes with a scale for each vector; that of
    activations; or float32. The last `num_uncoded` values of a vector are no codes: they are bfloat16 behind these.
    """

    name: str
    shape: tuple[int, ...]
    number: Literal["cache", "activation", "float32"] = "cache"
    num_uncoded: int = 0


class BlockDescription(Protocol):
    """A part of a layer that `blocks/registry.py` has the computation of. Descriptions of equal ones are equal."""

    def room_sizes(self, hidden_size: int) -> dict[str, int]:
        """Returns the values per token that it uses of `Activations`, by the names of its fields."""
        ...

    def divided(self, num_ranks: int) -> Self:
        """Returns the part of one rank. Raises `BootError` if it cannot be divided."""
        ...

    def parameters(self, layer: str, hidden_size: int) -> list[Parameter]:
        """Returns the parameters of the block in the layer of this name."""
        ...


@dataclass(frozen=True, kw_only=True)
class MixerDescription(BlockDescription):
    """What computes a token's values from other tokens': attention of any kind, or a recurrent block.

    It keeps something of each token in pages, or of each sequence in state slots, or nothing. `window`: the number of
    last tokens that a token attends to, itself included. `kv_layer`: the layer whose cache is read, which the mixer of
    the same place there has stored; this one has none of its own.
    """

    window: int | None = None
    kv_layer: int | None = None

    @property
    @abstractmethod
    def out_size(self) -> int:
        """The values per token before its output projection: its room in `Activations.attended`."""

    @property
    def has_axes(self) -> bool:
        """True if its positions have three axes."""
        return False

    @property
    def cache(self) -> tuple[CachePart, ...]:
        """What it stores of each token."""
        return ()

    @property
    def state(self) -> tuple[CachePart, ...]:
        """The parts of a recurrent state."""
        return ()

    @property
    def kind(self) -> tuple[int, int, int, int | None] | None:
        """Query heads, key/value heads, values per head and window of attention over the cache, else `None`.

        A step has one plan for all layers of a kind.
        """
        return None

    @property
    def latent_rank(self) -> int | None:
        """The values of a cached key that are the value, too; `None` if keys and values are cached apart."""
        return None


MlpDescription = BlockDescription
"""An MLP of any kind, dense or of experts."""

Mixer = TypeVar("Mixer", bound=MixerDescription)


@dataclass(frozen=True, kw_only=True)
class DenseMlpDescription(BlockDescription):
    """A dense MLP with `size` inner values."""

    size: int
    activation: Literal["gelu_tanh", "gelu", "quick_gelu", "relu2", "silu_gated", "gelu_tanh_gated", "gelu_gated"]
    has_bias: bool = False

    @property
    def is_gated(self) -> bool:
        return self.activation.endswith("_gated")

    @property
    def in_size(self) -> int:
        """Outputs of the first linear: a gated MLP has the gate's, then those that it gates."""
        return 2 * self.size if self.is_gated else self.size

    def room_sizes(self, hidden_size: int) -> dict[str, int]:
        return {"inner": self.in_size, "gated": self.size if self.is_gated else 0}

    def divided(self, num_ranks: int) -> Self:
        return replace(self, size=divide(self.size, num_ranks, "columns of the MLP"))

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
    """Mixers and an MLP, of which a layer may lack some. Their outputs are added to the stream.

    Mixers read the same input, the stream after `attention_norm`; the outputs of several are added together.

    The norms before them apply to what they read, the norms after them (`…_out_norm`) to their outputs; each may be
    missing. If `is_parallel`, the MLP reads the layer's input as mixers do, through its own norm or, without one,
    through theirs. `input_size`: the number of values per token that the layer gets in addition to the stream
    (`blocks/layer_inputs.py`); `input_norm` is that of what they add to it. `has_scale`: the stream is then multiplied
    by a number.
    """

    mixers: tuple[MixerDescription, ...] = ()
    mlp: MlpDescription | None = None
    attention_norm: NormDescription | None = None
    mlp_norm: NormDescription | None = None
    attention_out_norm: NormDescription | None = None
    mlp_out_norm: NormDescription | None = None
    is_parallel: bool = False
    input_size: int = 0
    input_norm: NormDescription | None = None
    has_scale: bool = False

    @property
    def blocks(self) -> tuple[BlockDescription, ...]:
        return self.mixers if self.mlp is None else (*self.mixers, self.mlp)

    def find(self, kind: type[Mixer]) -> Mixer | None:
        """Returns the layer's mixer of this kind, if it has one."""
        return next((mixer for mixer in self.mixers if isinstance(mixer, kind)), None)

    def divided(self, num_ranks: int) -> "LayerDescription":
        """Returns the part of one rank. Raises `BootError` if it cannot be divided."""
        mixers = tuple(mixer.divided(num_ranks) for mixer in self.mixers)
        return replace(self, mixers=mixers, mlp=self.mlp and self.mlp.divided(num_ranks))


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

    `deepstack_layers`: after these layers, further parts of images' rows are added to the stream (`span_rows.py`).
    `padding_id`: the token whose further inputs of layers are those of tokens with a placed row. `held_layers`: those
    that this process has, if it is one of several stages; `layers` are still all of them.
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
    deepstack_layers: tuple[int, ...] = ()
    padding_id: int = 0
    held_layers: range | None = None

    def __post_init__(self) -> None:
        if not self.mixers:
            raise BootError("config.json: no layer has attention or a recurrent block, so no token would read others")

    @property
    def held(self) -> range:
        """The indices of the layers that this process has."""
        return range(len(self.layers)) if self.held_layers is None else self.held_layers

    @property
    def has_end(self) -> bool:
        """True if this process has the last layer, and with it the head."""
        return self.held.stop == len(self.layers)

    @property
    def held_mixers(self) -> list[MixerDescription]:
        return [mixer for index in self.held for mixer in self.layers[index].mixers]

    @property
    def vocab_part(self) -> int:
        """Entries of the vocabulary per rank; the last rank may have fewer, and padding."""
        return -(-self.vocab_size // self.num_ranks)

    @property
    def mixers(self) -> list[MixerDescription]:
        """The mixers of all layers, in order."""
        return [mixer for layer in self.layers for mixer in layer.mixers]

    def find(self, kind: type[Mixer]) -> list[Mixer]:
        """Returns the mixers of this kind. They may have different sizes."""
        return [mixer for mixer in self.mixers if isinstance(mixer, kind)]

    @property
    def row_size(self) -> int:
        """The values of a row that replaces an embedding: the embedding, and what is added after layers."""
        return self.hidden_size * (1 + len(self.deepstack_layers))

    @property
    def has_axes(self) -> bool:
        """True if positions have three axes."""
        return any(mixer.has_axes for mixer in self.mixers)

    @property
    def sees_spans(self) -> bool:
        """True if tokens of a two-way span attend to each other in some layer."""
        return any(getattr(mixer, "sees_spans", False) for mixer in self.mixers)

    @property
    def has_states(self) -> bool:
        return any(mixer.state for mixer in self.mixers)

    @property
    def hidden(self) -> tuple[CachePart, ...]:
        """What the model itself stores of each token: its final hidden state, for a head of multi-token prediction."""
        return () if self.mtp is None or not self.has_end else (CachePart("hidden", (self.hidden_size,), "activation"),)

    @property
    def attended_size(self) -> int:
        """The largest number of values per token that a mixer has for its output linear."""
        return max(mixer.out_size for mixer in self.mixers)

    @property
    def last_storing(self) -> int:
        """The last layer in which tokens read others': of later ones only the head's tokens are needed."""
        own = (any(mixer.kv_layer is None for mixer in layer.mixers) for layer in self.layers)
        return max(index for index, has_own in enumerate(own) if has_own)

    def with_mtp(self) -> "ModelDescription":
        """Returns the model with a head of multi-token prediction, whose layer is like the last one with a cache."""
        layer = next(layer for layer in reversed(self.layers) if any(mixer.cache for mixer in layer.mixers))
        return replace(self, mtp=layer)

    @property
    def layer_inputs_size(self) -> int:
        """The values per token that all layers get in addition to the residual stream."""
        return sum(layer.input_size for layer in self.layers)
