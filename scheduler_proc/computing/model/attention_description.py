"""Describes attention as plain values: over the KV cache, and over the step's own tokens. Needs no torch."""

from dataclasses import dataclass, replace
from typing import Self

from messages.errors import BootError
from scheduler_proc.computing.model.description import CachePart, MixerDescription, NormDescription, RopeDescription
from scheduler_proc.computing.model.parameters import ByColumns, ByRows, Parameter, divide, linear_parameters

QK_NORMS = ("query_norm", "key_norm")


@dataclass(frozen=True, kw_only=True)
class AttentionDescription(MixerDescription):
    """`qk_norm`: the norm of each query and key head, before rotation; with `norms_whole_qk`, instead, of all query
    heads together and of all key heads together. `norms_values`: that of each value head, without a weight. Without
    `rope` heads are not rotated. `shares_kv_weight`: values are the keys before their norm and rotation; a checkpoint
    has one weight for both.

    `softcap`: scores become softcap * tanh(score / softcap). `has_sinks`: each head has a learned logit in the
    denominator of its softmax. `has_gate`: outputs are multiplied by the sigmoid of a linear. `sees_spans`: tokens of a
    two-way span attend to all of its tokens, also with a window, which begins before each token.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    rope: RopeDescription | None = None
    qk_norm: NormDescription | None = None
    norms_whole_qk: bool = False
    norms_values: bool = False
    shares_kv_weight: bool = False
    has_qkv_bias: bool = False
    has_out_bias: bool = False
    softcap: float | None = None
    has_sinks: bool = False
    has_gate: bool = False
    sees_spans: bool = False

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
    def has_axes(self) -> bool:
        return self.rope is not None and bool(self.rope.axes)

    @property
    def heads(self) -> tuple[int, int, int]:
        """Query heads, key/value heads and values per head."""
        return self.num_heads, self.num_kv_heads, self.head_dim

    @property
    def kind(self) -> tuple[int, int, int, int | None] | None:
        return *self.heads, self.window

    @property
    def cache(self) -> tuple[CachePart, ...]:
        shape = self.num_kv_heads, self.head_dim
        return () if self.kv_layer is not None else (CachePart("keys", shape), CachePart("values", shape))

    @property
    def out_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    @property
    def qkv_size(self) -> int:
        return self.out_size + (2 * self.kv_size if self.kv_layer is None else 0)

    def room_sizes(self, hidden_size: int) -> dict[str, int]:
        return {"heads": self.qkv_size, "inner": self.out_size if self.has_gate else 0}

    def divided(self, num_ranks: int) -> Self:
        """If there are fewer key/value heads than ranks, several ranks have each."""
        num_heads = divide(self.num_heads, num_ranks, "attention heads")
        if self.num_kv_heads % num_ranks and num_ranks % self.num_kv_heads:
            raise BootError(
                f"--tensor-parallel {num_ranks}: the model's {self.num_kv_heads} key/value heads can neither be "
                "divided among these ranks, nor each be given to the same number of ranks"
            )
        num_kv_heads = max(1, self.num_kv_heads // num_ranks)
        return replace(self, num_heads=num_heads, num_kv_heads=num_kv_heads)

    def parameters(self, layer: str, hidden_size: int) -> list[Parameter]:
        heads = (self.num_heads, self.num_kv_heads, self.num_kv_heads)[: 3 if self.kv_layer is None else 1]
        by_heads = ByRows(tuple((num, self.head_dim) for num in heads))
        by_query_heads, by_column = ByRows(by_heads.sections[:1]), ByColumns()
        parameters = linear_parameters(f"{layer}.qkv", self.qkv_size, hidden_size, self.has_qkv_bias, by_heads)
        if self.qk_norm is not None:
            for name, num in zip(QK_NORMS, heads, strict=False):
                size, split = self.qk_norm.size, None
                if self.norms_whole_qk:
                    size, split = num * size, ByRows(((num, size),))
                parameters.append(Parameter(f"{layer}.{name}.weight", (size,), "norm", split))
        if self.has_sinks:
            parameters.append(Parameter(f"{layer}.sinks", heads[:1], "bias", ByRows(((self.num_heads, 1),))))
        if self.has_gate:
            gate = f"{layer}.attention_gate"
            parameters += linear_parameters(gate, self.out_size, hidden_size, self.has_qkv_bias, by_query_heads)
        out = f"{layer}.attention_out"
        return parameters + linear_parameters(out, hidden_size, self.out_size, self.has_out_bias, by_column)


@dataclass(frozen=True, kw_only=True)
class EncoderAttentionDescription(AttentionDescription):
    """Tokens attend to all tokens of their row's step, earlier and later ones; nothing is cached.

    `window` is then that to each side. No scores are capped and there are no sinks.
    """

    @property
    def kind(self) -> None:
        return None

    @property
    def cache(self) -> tuple[CachePart, ...]:
        return ()
