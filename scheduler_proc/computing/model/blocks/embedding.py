"""The embeddings of tokens and, in models that learn them, of positions.

Tokens of type 0 are the usual ones: what their type adds is part of the positions.

Shape legend: T tokens, E embedding size, V this rank's entries of the vocabulary, M positions, K token types.
"""

import torch
from torch import Tensor
from torch.nn import functional

from kernels.formats.embed import embed
from kernels.operations.rescale import rescale
from scheduler_proc.computing.model.blocks.weights import Weights, pop_tensor
from scheduler_proc.computing.model.description import ModelDescription
from scheduler_proc.computing.model.parameters import ByRows, Parameter
from scheduler_proc.computing.parallel import ParallelGroup
from scheduler_proc.computing.step.features.token_types import TYPES
from scheduler_proc.computing.step.inputs import StepInputs

TOKENS, POSITIONS, TOKEN_TYPES = "embedding", "position_embedding", "token_type_embedding"


def embedding_parameters(model: ModelDescription) -> list[Parameter]:
    shape, role = (model.vocab_size, model.hidden_size), "tied" if model.has_tied_head else "embedding"
    tokens = Parameter(TOKENS, shape, role, ByRows(((model.vocab_size, 1),)))
    tables = {POSITIONS: model.num_positions, TOKEN_TYPES: model.num_token_types}
    return [tokens, *(Parameter(name, (num, model.hidden_size), "positions") for name, num in tables.items() if num)]


class Embedding:
    def __init__(self, model: ModelDescription, weights: Weights, parallel: ParallelGroup, dtype: torch.dtype):
        self.tokens_VE = weights.pop(TOKENS)
        self._positions_ME = pop_tensor(weights, POSITIONS) if model.num_positions else None
        self._type_changes_KE = None
        if model.num_token_types:
            assert self._positions_ME is not None
            types_KE = pop_tensor(weights, TOKEN_TYPES)
            self._positions_ME = self._positions_ME + types_KE[0]
            self._type_changes_KE = types_KE - types_KE[0]
        if self._positions_ME is not None:
            self._positions_ME = self._positions_ME[model.num_unused_positions :]
        self._scale = model.embedding_scale
        if model.rounds_embedding_scale:
            self._scale = float(torch.tensor(self._scale, dtype=dtype))
        assert self._scale == 1 or self._positions_ME is None, "positions would be scaled, too"
        self._vocab_part = model.vocab_part
        self._parallel = parallel

    def __call__(self, step: StepInputs, out_TE: Tensor | None) -> Tensor:
        """Returns the embeddings of the step's tokens, possibly in `out_TE`. Each rank looks up its part."""
        if self._parallel.size == 1:
            embedded_TE = embed(step.token_ids, step.positions, self.tokens_VE, self._positions_ME, out_TE)
        else:
            embedded_TE = self._look_up_part(step)
        types_T = step.view(TYPES)
        if types_T is not None and self._type_changes_KE is not None:
            embedded_TE += functional.embedding(types_T, self._type_changes_KE)
        return embedded_TE if self._scale == 1 else rescale(embedded_TE, self._scale)

    def _look_up_part(self, step: StepInputs) -> Tensor:
        row_T = step.token_ids - self._parallel.rank * self._vocab_part
        is_elsewhere_T = (row_T < 0) | (row_T >= self._vocab_part)
        part_TE = self.tokens_VE.look_up(row_T.masked_fill(is_elsewhere_T, 0))
        embedded_TE = self._parallel.all_reduce(part_TE.masked_fill_(is_elsewhere_T[:, None], 0))
        if self._positions_ME is not None:
            embedded_TE += functional.embedding(step.positions, self._positions_ME)
        return embedded_TE
