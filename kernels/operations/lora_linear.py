"""The low-rank updates that adapters add to the outputs of a linear layer, whatever the format of its weight.

Shape legend: T tokens, I inputs, O outputs; S slots, G segments, R largest rank.
"""

from torch import Tensor

from kernels.arguments.lora_slots import LoraSlots, TokenAdapters
from kernels.dispatch import call


def lora_linear(x_TI: Tensor, lora: LoraSlots, adapters: TokenAdapters, out_TO: Tensor) -> Tensor:
    """Adds scale * B A x to the outputs of the tokens that have an adapter, and returns `out_TO`.

    Products and sums are in float32. On a CPU, a token's outputs are the same bits alone and in any batch.
    """
    lora.check(x_TI, out_TO)
    assert adapters.slots.shape == (len(x_TI),) == (len(out_TO),)
    assert out_TO.is_contiguous()
    call("lora_linear", x_TI, lora_linear_reference, x_TI.contiguous(), lora, adapters, out_TO)
    return out_TO


def lora_linear_reference(x_TI: Tensor, lora: LoraSlots, adapters: TokenAdapters, out_TO: Tensor) -> None:
    """Waits for the device."""
    ends, all_ranks, all_scales = lora.ends.tolist(), lora.ranks.tolist(), lora.scales.tolist()
    for slot in adapters.slots.unique().tolist():
        if slot < 0:
            continue
        tokens, begin = (adapters.slots == slot).nonzero()[:, 0], 0
        x = x_TI[tokens].float()
        for segment, (end, rank, scale) in enumerate(zip(ends, all_ranks[slot], all_scales[slot], strict=True)):
            a_RI, b_RO = lora.a[slot, segment, :rank], lora.b[slot, :rank, begin:end]
            update = scale * (x @ a_RI.float().T) @ b_RO.float()
            out_TO[tokens, begin:end] = (out_TO[tokens, begin:end].float() + update).to(out_TO.dtype)
            begin = end
