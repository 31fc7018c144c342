"""The head: logits of the hidden states.

Shape legend: N rows, E embedding size, V vocabulary.
"""

from torch import Tensor

from kernels.formats.weight_format import Weight
from kernels.operations.rescale import rescale
from scheduler_proc.computing.model.blocks.weights import Weights
from scheduler_proc.computing.model.description import ModelDescription
from scheduler_proc.computing.model.parameters import ByRows, Parameter
from scheduler_proc.computing.parallel import ParallelGroup

HEAD = "head"


def head_parameters(model: ModelDescription) -> list[Parameter]:
    """A tied head has no parameter of its own; it uses the embedding."""
    if model.has_tied_head:
        return []
    return [Parameter(HEAD, (model.vocab_size, model.hidden_size), "linear", ByRows(((model.vocab_size, 1),)))]


class Head:
    """Uses `embedding` if there is no weight for the head. A quantized tied head has its own weight."""

    def __init__(self, model: ModelDescription, weights: Weights, embedding: Weight, parallel: ParallelGroup):
        self._linear = weights.pop(HEAD, embedding).linear(None, None)
        self._scale, self._softcap = model.logit_scale, model.logit_softcap or 0.0
        self._vocab_size = model.vocab_size
        self._parallel = parallel

    def __call__(self, hidden_NE: Tensor, out_NV: Tensor | None = None) -> Tensor:
        """Returns the logits [N, V], possibly in `out_NV`. With several ranks, each gets all of them."""
        if self._parallel.size == 1:
            logits_NV = self._linear(hidden_NE, out_NV)
        else:
            logits_NV = self._parallel.gather_columns(self._linear(hidden_NE), self._vocab_size)
        has_changes = self._scale != 1 or self._softcap
        return rescale(logits_NV, self._scale, softcap=self._softcap) if has_changes else logits_NV
