"""The tokens of a step that a linear computes, with the adapters that update its outputs."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from torch import Tensor

from kernels.arguments.lora_slots import LoraSlots, TokenAdapters
from scheduler_proc.computing.step.features.adapters import ADAPTERS
from scheduler_proc.computing.step.inputs import StepInputs


@dataclass(frozen=True)
class StepRows:
    """The tokens that a linear computes: those with these indices (integers), or all tokens of the step.

    The step's columns are in the same memory in all steps that a capture serves. `lora`: the slots of each linear that
    adapters may update, by its name; `None` if no row has an adapter.
    """

    step: StepInputs
    tokens: Tensor | None = None
    lora: Mapping[str, LoraSlots] | None = None

    @cached_property
    def adapters(self) -> TokenAdapters:
        """The adapters of the tokens; some row must have one."""
        slots_T = self.step.view(ADAPTERS)
        assert slots_T is not None
        assert self.lora is not None
        num_slots = len(next(iter(self.lora.values())).ranks)
        return TokenAdapters(self.select(slots_T), num_slots)

    def select(self, column_T: Tensor) -> Tensor:
        """Returns the entries of a column of the step, one for each token."""
        return column_T if self.tokens is None else column_T[self.tokens]

    def narrowed(self, indices: Tensor) -> "StepRows":
        """Returns the rows with these indices."""
        return replace(self, tokens=indices if self.tokens is None else self.tokens[indices])

    def at_head(self) -> "StepRows":
        """Returns all rows of the step with only the tokens that go to the head."""
        return replace(self, step=self.step.at_head(), tokens=None)
