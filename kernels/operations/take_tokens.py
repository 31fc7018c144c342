"""Copies the tokens that the previous step sampled to where this step reads its tokens, on the device.

Shape legend: T tokens of the step, D decode rows, S rows that the previous step sampled.
"""

import torch
from torch import Tensor

from kernels.dispatch import call


def take_tokens(token_ids_T: Tensor, sources_D: Tensor, sampled_S: Tensor) -> None:
    """Sets the token of each decode row to `sampled_S[source]`, in place; source -1 keeps it.

    The decode rows are the first tokens of the step. Tokens and sources are int32, sampled tokens int32 or
    int64. A row without a token (-1: its logits were not finite) becomes token 0, which every vocabulary has; its
    result is dropped.
    """
    assert token_ids_T.dtype == sources_D.dtype == torch.int32
    assert sampled_S.dtype in (torch.int32, torch.int64)
    assert len(sources_D) <= len(token_ids_T)
    assert token_ids_T.is_contiguous()
    assert sources_D.is_contiguous()
    assert sampled_S.is_contiguous()
    call("take_tokens", token_ids_T, take_tokens_reference, token_ids_T, sources_D, sampled_S)


def take_tokens_reference(token_ids_T: Tensor, sources_D: Tensor, sampled_S: Tensor) -> None:
    if len(sources_D) == 0 or len(sampled_S) == 0:
        return
    tokens_D = sampled_S.index_select(0, sources_D.clamp(min=0)).clamp_(min=0).to(torch.int32)
    decode_D = token_ids_T[: len(sources_D)]
    decode_D.copy_(tokens_D.where(sources_D >= 0, decode_D))
