"""The plan of a step as tensors, and what describes an optional part of it.

Shape legend: T tokens, R rows, B decode rows, C prefill rows, P pages a row, S rows that sample, Q hidden
tokens, N tokens that go to the head (S + Q), W words of a plan of attention, L tiles.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from kernels.arguments.rows import PrefillRows
from kernels.plans.decode_work import DecodeWork
from messages.config.server import Config
from messages.ring.steps import Batch
from scheduler_proc.computing.step.host_parts import HostParts

View = TypeVar("View")

Axis = Literal["token", "decode row", "prefill row", "head token"]

AttentionKind = tuple[int, int, int, int | None]
"""`AttentionDescription.kind`, of some layers."""

NO_FEATURES = frozenset[str]()

Role = str
"""`main` serves; `draft`, a model with files of its own, or `mtp`, a head of the main one, drafts tokens for it."""


class InputColumn(NamedTuple):
    """A column of `StepInputs`: what it has an entry for, a whole page table if `is_table`.

    `read` returns the entries of a batch without padding; those of decode rows come before those of prefill rows.
    """

    dtype: torch.dtype
    axis: Axis
    padding: int
    """The value of places that no entry of the batch takes."""
    read: Callable[[Batch], bytes]
    is_table: bool = False


def only_column(_step: "StepInputs", columns: Mapping[str, Tensor]) -> Tensor:
    """Is the view of a feature with one column."""
    (column,) = columns.values()
    return column


def _no_columns(*_: object) -> Mapping[str, bytes]:
    return {}


@dataclass(frozen=True, eq=False)
class StepFeature(Generic[View]):
    """An optional part of steps, declared once: a file of `step/features/`, and an entry of `FEATURES` there.

    `View` is what blocks read: `step.view(FEATURE)` returns it.
    """

    name: str
    columns: Mapping[str, InputColumn]
    """What it adds to the columns of a step, by names that no other feature uses."""
    is_in: Callable[[Batch], object]
    """Returns something true if the step has these columns."""
    limit: Callable[[Config, Any, Role], bool]
    """Returns True if steps of a `ModelDescription` may have them. Raises `BootError` for a model that cannot."""
    make_view: Callable[["StepInputs", Mapping[str, Tensor]], View]
    """Returns the view of the columns; it is made once for each step."""
    captured: Literal["always", "both", "never"] = "always"
    """`always`: all steps of a model with this feature have its columns. `both`: steps are captured with them and
    without. `never`: steps that have them are computed call by call."""
    can_replay: Callable[[Any], bool] = lambda _: True
    """Returns False while steps that have them are computed call by call by this `Decoder`."""
    dummy: Callable[[Sequence[int], Mapping[str, bytes]], Mapping[str, bytes]] = _no_columns
    """Returns the columns of a dummy `Batch` that are not all equal, from the lengths of rows and other columns."""
    as_decode_rows: Callable[[Batch, Sequence[int]], Mapping[str, bytes]] = _no_columns
    """Returns the columns of `Batch` that do not only repeat a row's entry where its tokens become decode rows."""


@dataclass(frozen=True)
class StepInputs:
    """The first B tokens are those of the decode rows; the tokens of the prefill rows follow one after another."""

    num_decode_rows: int
    token_ids: Tensor
    """int32 [T]"""
    positions: Tensor
    """int32 [T]: `Batch.rope_positions`, which are mostly `Batch.positions`."""
    slots: Tensor
    """int64 [T]"""
    future_token_indices: Tensor
    """int32 [B]: index of the row's token among those sampled by the previous step, -1: `token_ids` has it."""
    decode_page_tables: Tensor
    """int32 [B, P], padded with -1."""
    decode_num_keys: Tensor
    """int32 [B]: tokens that the row attends to, its new one included."""
    prefill_page_tables: Tensor
    """int32 [C, P], padded with -1."""
    prefill_query_lens: Tensor
    """int32 [C]"""
    prefill_context_lens: Tensor
    """int32 [C]"""
    head_tokens: Tensor
    """int64 [N]: the tokens that go to the head: the last token of each sampling row, then the tokens before prompt
    tokens with logprobs."""
    all_go_to_head: bool = False
    """`head_tokens` are all tokens, in order; known without waiting for the device."""
    decode_works: Mapping[AttentionKind, DecodeWork] | None = None
    """The plans of decode attention: which program computes what; `None` for kernels without a plan."""
    prefill_tiles: Mapping[AttentionKind, Tensor] | None = None
    """int32 [L, 8]: the plans for prefill rows."""
    long_kinds: Collection[AttentionKind] = ()
    """The kinds whose plans for prefill rows are of long prompts."""
    head_rows: PrefillRows | None = None
    """The prefill rows with only their tokens among `head_tokens`, which are then in the order of all tokens and begin
    with those of the decode rows. `None` if that is not known."""
    features: Mapping[StepFeature[Any], Mapping[str, Tensor]] = field(default_factory=dict)
    """The columns of the features that the step has."""
    host: HostParts | None = None
    """Computes what the model has in the host's memory; `None` if that is nothing, or the device is the host."""

    @cached_property
    def _views(self) -> dict[StepFeature[Any], Any]:
        return {feature: feature.make_view(self, columns) for feature, columns in self.features.items()}

    def view(self, feature: StepFeature[View]) -> View | None:
        """Returns what blocks read of the feature; `None` if the step does not have it."""
        return self._views.get(feature)

    def at_head(self) -> "StepInputs":
        """Returns the step with only the tokens that go to the head; `head_rows` must be known."""
        assert self.head_rows is not None
        columns = {name: getattr(self, name)[self.head_tokens] for name in ("token_ids", "positions", "slots")}
        lens = {"prefill_query_lens": self.head_rows.query_lens, "prefill_context_lens": self.head_rows.context_lens}
        features = {
            feature: {
                name: column[self.head_tokens] if feature.columns[name].axis == "token" else column
                for name, column in own.items()
            }
            for feature, own in self.features.items()
        }
        return replace(self, all_go_to_head=True, head_rows=None, features=features, **columns, **lens)
