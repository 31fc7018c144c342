"""Looks up embeddings of tokens and, if the model has them, of positions.

Shape legend: T tokens, E embedding size, V vocabulary, M positions.

The table of tokens may have any format: a model with a tied head stores it once, in the head's format. The C kernel
reads plain and packed tables; the rows of others are looked up by the weight itself, and are then the table.
"""

import torch
from torch import Tensor
from torch.nn import functional

from kernels.dispatch import find_implementation
from kernels.formats.packed import PACKED, PackedWeight
from kernels.formats.plain import PLAIN
from kernels.formats.weight_format import Weight

LAYOUTS = {PLAIN.name: False, PACKED.name: True}
"""The formats that the C kernel reads, and whether each of them is packed."""

COUNTED = torch.arange(1024, dtype=torch.int32)
"""Made here, for a captured step may not compute it."""


def embed(
    token_ids_T: Tensor,
    positions_T: Tensor,
    token_table_VE: Weight,
    position_table_ME: Tensor | None,
    out_TE: Tensor | None = None,
) -> Tensor:
    """Returns each token's row of one table plus its position's row of the other [T, E].

    Both indices are int32 and within the tables. The C kernel writes the result to `out_TE` if it is given.
    """
    assert token_ids_T.dtype == positions_T.dtype == torch.int32
    assert token_ids_T.shape == positions_T.shape
    table, is_packed = token_table_VE.stored, LAYOUTS.get(token_table_VE.format.name)
    if isinstance(token_table_VE, PackedWeight) and token_table_VE.is_padded:
        is_packed = None
    like = table if is_packed is not None else position_table_ME
    implementation = None if like is None else find_implementation("embed", like)
    if implementation is None:
        return embed_reference(token_ids_T, positions_T, token_table_VE, position_table_ME)
    if is_packed is None:
        table, is_packed = token_table_VE.look_up(token_ids_T), False
        token_ids_T = COUNTED[: len(table)] if len(table) <= len(COUNTED) else torch.arange(len(table)).int()
    return implementation(token_ids_T, positions_T, table, is_packed, position_table_ME, out_TE)


def embed_reference(
    token_ids_T: Tensor, positions_T: Tensor, token_table_VE: Weight, position_table_ME: Tensor | None
) -> Tensor:
    embedded_TE = token_table_VE.look_up(token_ids_T)
    if position_table_ME is not None:
        embedded_TE += functional.embedding(positions_T, position_table_ME)
    return embedded_TE
