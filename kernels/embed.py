"""Rows of the embeddings of tokens and, where there is one, of positions.

Shape legend: T tokens, E embedding size, V vocabulary, M positions.

The table of tokens may be packed: a model with a tied head has it in memory once, as the head reads it.
"""

import torch
from torch import Tensor
from torch.nn import functional

from kernels.cpu.library import find_kernel
from kernels.packed_linear import PackedWeight, unpack_rows


def embed(
    token_ids_T: Tensor,
    positions_T: Tensor,
    token_table_VE: Tensor | PackedWeight,
    position_table_ME: Tensor | None,
    out_TE: Tensor | None = None,
) -> Tensor:
    """Returns each token's row of one table plus its position's of the other [T, E], in `out_TE` if it is given.

    Both indices are int32 and lie within the tables.
    """
    assert token_ids_T.dtype == positions_T.dtype == torch.int32
    assert token_ids_T.shape == positions_T.shape
    is_packed = isinstance(token_table_VE, PackedWeight)
    table, size = (
        (token_table_VE.packed, token_table_VE.num_inputs) if is_packed else (token_table_VE, token_table_VE.shape[1])
    )
    assert table.is_contiguous()
    assert position_table_ME is None or position_table_ME.is_contiguous()
    kernel = find_kernel("embed", table)
    if kernel is None:
        return embed_reference(token_ids_T, positions_T, token_table_VE, position_table_ME)
    num_tokens = len(token_ids_T)
    if out_TE is None:
        out_TE = torch.empty(num_tokens, size, dtype=table.dtype)
    assert out_TE.is_contiguous()
    kernel(
        token_ids_T.data_ptr(),
        positions_T.data_ptr(),
        table.data_ptr(),
        None if position_table_ME is None else position_table_ME.data_ptr(),
        out_TE.data_ptr(),
        num_tokens,
        size,
        is_packed,
    )
    return out_TE


def embed_reference(
    token_ids_T: Tensor, positions_T: Tensor, token_table_VE: Tensor | PackedWeight, position_table_ME: Tensor | None
) -> Tensor:
    embedded_TE = look_up(token_ids_T, token_table_VE)
    if position_table_ME is not None:
        embedded_TE += functional.embedding(positions_T, position_table_ME)
    return embedded_TE


def look_up(token_ids_T: Tensor, token_table_VE: Tensor | PackedWeight) -> Tensor:
    """Returns each token's row of the table [T, E]."""
    if isinstance(token_table_VE, PackedWeight):
        return unpack_rows(token_table_VE, token_ids_T)
    return functional.embedding(token_ids_T, token_table_VE)
