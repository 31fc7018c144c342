"""The head: logits of the hidden states.

Shape legend: N rows, E embedding size, V vocabulary, L tokens of a row.
"""

import torch
from torch import Tensor

from kernels.arguments.few_rows import Best, PlainMatrix
from kernels.formats.weight_format import Weight
from kernels.operations.few_rows_linear import few_rows_linear, takes_few_rows
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
        if self._parallel.size == 1:
            logits_NV = self._linear(hidden_NE, out_NV)
        else:
            logits_NV = self._parallel.gather_columns(self._linear(hidden_NE), self._vocab_size)
        return self._rescale(logits_NV)

    def best_tokens(self, hidden_NE: Tensor) -> Tensor | None:
        """Returns the likeliest token of each row, as `greedy` of its logits; `None` if only logits show it."""
        matrix, is_plain = self._weight.matrix, self._parallel.size == 1 and self._scale == 1 and not self._softcap
        if matrix is None or not is_plain or not takes_few_rows(hidden_NE, "argmax"):
            return None
        return few_rows_linear(hidden_NE, PlainMatrix(matrix, None), None, Best())

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
