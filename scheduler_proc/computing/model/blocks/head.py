"""The head: logits of the hidden states.

Shape legend: N rows, E embedding size, V vocabulary, L tokens of a row.
"""

import torch
from torch import Tensor

from kernels.formats.weight_format import Weight
from kernels.operations.few_rows_linear import find_best_tokens
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

    def __init__(self, model: ModelDescription, weights: Weights, embedding: Weight | None, parallel: ParallelGroup):
        weight = weights.pop(HEAD, embedding)
        assert weight is not None
        self._weight = weight
        self._linear = self._weight.linear(None, None)
        self._scale, self._softcap = model.logit_scale, model.logit_softcap or 0.0
        self._vocab_size, self._vocab_part = model.vocab_size, model.vocab_part
        self._parallel = parallel

    def __call__(self, hidden_NE: Tensor, out_NV: Tensor | None = None) -> Tensor:
        """Returns the logits [N, V], possibly in `out_NV`. With several ranks, each gets all of them."""
        is_whole = self._parallel.size == 1
        part_NV = self._linear(hidden_NE, out_NV if is_whole else None)
        return self._rescale(part_NV if is_whole else self._parallel.gather_columns(part_NV, self._vocab_size))

    def best_tokens(self, hidden_NE: Tensor) -> Tensor | None:
        """Returns the likeliest token of each row, as `greedy` of its logits; `None` if only logits show it."""
        is_product = self._parallel.size == 1 and self._scale == 1 and not self._softcap
        return find_best_tokens(hidden_NE, self._weight.matrix) if is_product else None

    def token_logits(self, hidden_NE: Tensor, ids_NL: Tensor) -> Tensor:
        """Returns the logits of these tokens, float32 [N, L]: not rounded to the dtype of `hidden_NE`."""
        row_NL = ids_NL - self._parallel.rank * self._vocab_part
        is_elsewhere_NL = (row_NL < 0) | (row_NL >= self._vocab_part)
        rows = self._weight.look_up(row_NL.masked_fill(is_elsewhere_NL, 0).flatten()).double()
        # In float64, rounded to float32, a sum does not depend on its order, which may depend on other rows.
        part_NL = torch.linalg.vecdot(rows.view(*ids_NL.shape, -1), hidden_NE.double()[:, None]).float()
        return self._rescale(self._parallel.all_reduce(part_NL.masked_fill_(is_elsewhere_NL, 0)))

    def _rescale(self, logits_NV: Tensor) -> Tensor:
        scale, softcap = self._scale, self._softcap
        return rescale(logits_NV, scale, softcap=softcap) if scale != 1 or softcap else logits_NV
