"""LoRA adapters in the host's memory, and the slots on the device that they are placed into between steps.

Shape legend: S slots, G segments, R rank, I inputs, O outputs, T tokens, N rows, E embedding size, V vocabulary.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kernels.arguments.lora_slots import LoraSlots, TokenAdapters
from kernels.formats.packed import PACKED
from kernels.formats.plain import PLAIN
from kernels.formats.weight_format import Linear, Weight
from kernels.operations.lora_linear import lora_linear
from kernels.operations.packed_linear import has_packed_kernel
from scheduler_proc.computing.model.blocks.embedding import POSITIONS, TOKENS, Embedding
from scheduler_proc.computing.model.blocks.head import HEAD, Head
from scheduler_proc.computing.model.description import ModelDescription
from scheduler_proc.computing.parallel import ALONE
from scheduler_proc.computing.placement import Placement
from scheduler_proc.computing.step.inputs import StepInputs

log = logging.getLogger("sluice.adapters")


class LowRank(NamedTuple):
    """An update of a matrix [O, I]: scale * B A, where `b` is B transposed."""

    a: Tensor
    """[R, I]"""
    b: Tensor
    """[R, O]"""
    scale: float


Table = Tensor | LowRank | None
"""What an adapter has for the matrix [V, E] of the embedding or the head: all values, an update, or nothing."""


@dataclass(frozen=True)
class HostAdapter:
    """An adapter in host memory, in the number format of activations, and in the order of our weights."""

    digest: str
    rank: int
    linears: Mapping[str, Sequence[LowRank | None]]
    """By our name of the linear layer, the update of each segment."""
    embedding: Table = None
    head: Table = None

    @property
    def num_bytes(self) -> int:
        updates = [*(update for updates in self.linears.values() for update in updates), self.embedding, self.head]
        return sum(part.nbytes for update in updates for part in _tensors_of(update))


def _tensors_of(update: Table) -> Sequence[Tensor]:
    return () if update is None else (update,) if isinstance(update, Tensor) else update[:2]


class LinearPlan(NamedTuple):
    """The sizes of a linear layer, and the first output after each of its segments."""

    num_inputs: int
    ends: tuple[int, ...]


class AdapterSlots:
    """The memory of all slots: room for updates of the largest rank of every linear layer in `linears`.

    Its tensors stay where they are, so captured steps read the adapter that is in a slot at the time.
    """

    def __init__(self, linears: Mapping[str, LinearPlan], num_slots: int, max_rank: int, placement: Placement):
        dtype, device = placement.dtype, placement.device

        def make(plan: LinearPlan) -> LoraSlots:
            num_segments = len(plan.ends)
            return LoraSlots(
                torch.empty(num_slots, num_segments, max_rank, plan.num_inputs, dtype=dtype, device=device),
                torch.empty(num_slots, max_rank, plan.ends[-1], dtype=dtype, device=device),
                torch.zeros(num_slots, num_segments, dtype=torch.int32, device=device),
                torch.zeros(num_slots, num_segments, dtype=torch.float32, device=device),
                torch.tensor(plan.ends, dtype=torch.int32, device=device),
            )

        self._plans = linears
        self.linears = {name: make(plan) for name, plan in linears.items()}
        num_bytes = sum(part.nbytes for lora in self.linears.values() for part in (lora.a, lora.b))
        log.info(
            "LoRA: %d slots for adapters of rank %d or less, %.2f GiB in all (%.1f MiB each)",
            num_slots,
            max_rank,
            num_bytes / 2**30,
            num_bytes / num_slots / 2**20,
        )

    def place(self, slot: int, adapter: HostAdapter) -> None:
        """Puts the adapter's updates of linear layers into the slot, in place of those before."""
        for name, lora in self.linears.items():
            ends = self._plans[name].ends
            updates, begin = adapter.linears.get(name) or [None] * len(ends), 0
            for segment, (update, end) in enumerate(zip(updates, ends, strict=True)):
                if update is not None:
                    rank = len(update.a)
                    lora.a[slot, segment, :rank].copy_(update.a)
                    lora.b[slot, :rank, begin:end].copy_(update.b)
                begin = end
            lora.ranks[slot].copy_(torch.tensor([len(update.a) if update else 0 for update in updates]))
            lora.scales[slot].copy_(torch.tensor([update.scale if update else 0.0 for update in updates]))


@dataclass(frozen=True)
class UpdatedHead:
    """The weight of a head with an adapter's update, in the only slot; that of the model may have any format."""

    weight: Weight
    update: LoraSlots

    def linear(self, bias_O: None, activation: None) -> Linear:
        base = self.weight.linear(bias_O, activation)

        def compute(x_NE: Tensor, out_NV: Tensor | None = None) -> Tensor:
            adapters = TokenAdapters(torch.zeros(len(x_NE), dtype=torch.int32, device=x_NE.device), 1)
            return lora_linear(x_NE, self.update, adapters, base(x_NE, out_NV))

        return compute


class OwnTables:
    """The embeddings and heads that the adapters in slots have in place of the model's.

    Steps with rows of any adapter are computed call by call while there are some.
    """

    def __init__(self, model: ModelDescription, weights: Mapping[str, Weight], placement: Placement):
        self._model, self._placement = model, placement
        self._weights = {name: weights[name] for name in (TOKENS, POSITIONS) if name in weights}
        self._head = weights.get(HEAD, weights[TOKENS])
        self._embeddings: dict[int, Embedding] = {}
        self._heads: dict[int, Head] = {}

    def __bool__(self) -> bool:
        return bool(self._embeddings or self._heads)

    def place(self, slot: int, adapter: HostAdapter) -> None:
        self._embeddings.pop(slot, None)
        self._heads.pop(slot, None)
        if adapter.embedding is not None:
            own: dict[str, Any] = self._weights | {TOKENS: PLAIN.restore(self._fill_table(adapter.embedding), ())}
            self._embeddings[slot] = Embedding(self._model, own, ALONE, self._placement.dtype)
        if adapter.head is not None:
            weight = self._make_head(adapter.head)
            self._heads[slot] = Head(self._model, {HEAD: weight}, weight, ALONE)

    def embed(self, step: StepInputs, slots_T: Tensor, embedded_TE: Tensor) -> None:
        """Overwrites the embeddings of the tokens whose adapter has some of its own."""
        for slot, embedding in self._embeddings.items():
            is_own_T1 = (slots_T == slot)[:, None]
            embedded_TE.copy_(torch.where(is_own_T1, embedding(step, None), embedded_TE))

    def score(self, hidden_NE: Tensor, slots_N: Tensor, logits_NV: Tensor) -> None:
        """Overwrites the logits of the rows whose adapter has a head of its own."""
        for slot, head in self._heads.items():
            logits_NV.copy_(torch.where((slots_N == slot)[:, None], head(hidden_NE), logits_NV))

    def _fill_table(self, table: Tensor | LowRank) -> Tensor:
        device = self._placement.device
        if isinstance(table, Tensor):
            return table.to(device)
        a_RE, b_RV, scale = table
        values_VE = self._weights[TOKENS].look_up(torch.arange(b_RV.shape[1], device=device)).float()
        return values_VE.addmm_(b_RV.to(device).float().T, a_RE.to(device).float(), alpha=scale).to(a_RE.dtype)

    def _make_head(self, head: Tensor | LowRank) -> Any:
        device = self._placement.device
        if not isinstance(head, Tensor):
            a_RE, b_RV = (part.to(device, self._placement.dtype).contiguous() for part in head[:2])
            ranks, ends = (torch.tensor([size], dtype=torch.int32, device=device) for size in b_RV.shape)
            scales = torch.tensor([[head.scale]], device=device)
            return UpdatedHead(self._head, LoraSlots(a_RE[None, None], b_RV[None], ranks[None], scales, ends))
        rows_VE = head.to(device)
        weight_format = PACKED if has_packed_kernel(rows_VE) else PLAIN
        weight = weight_format.allocate(tuple(rows_VE.shape), rows_VE.dtype, device)
        weight.set_rows(0, rows_VE)
        return weight.finish()


class Adapters(NamedTuple):
    """What a model has for adapters: how one is read, and where they are placed."""

    read: Callable[[str], HostAdapter]
    """Takes the path of its directory; runs in any thread. Raises `AdapterError`."""
    slots: AdapterSlots
    tables: OwnTables

    @torch.inference_mode()
    def place(self, slot: int, adapter: HostAdapter) -> None:
        """Puts the adapter into the slot, for the steps that are launched from now on."""
        self.slots.place(slot, adapter)
        self.tables.place(slot, adapter)
