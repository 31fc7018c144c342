"""Layer normalization with the residual addition before it.

Shape legend: T tokens, E embedding size. Formula: Ba, Kiros and Hinton, "Layer Normalization", 2016.
"""

from torch import Tensor
from torch.nn import functional

from kernels.dispatch import call


def layer_norm(
    x_TE: Tensor,
    weight_E: Tensor,
    bias_E: Tensor,
    eps: float,
    update_TE: Tensor | None = None,
    out_TE: Tensor | None = None,
) -> Tensor:
    """Returns (x - mean(x)) / sqrt(var(x) + eps) * weight + bias, computed in float32.

    With `update_TE`, `x_TE` is the residual stream and has it added in place first. The result may be
    written to `out_TE`, which is like `x_TE`; otherwise it is a new tensor.
    """
    assert x_TE.shape[-1:] == weight_E.shape == bias_E.shape
    assert x_TE.dtype == weight_E.dtype == bias_E.dtype
    assert update_TE is None or (update_TE.shape == x_TE.shape and update_TE.dtype == x_TE.dtype)
    assert out_TE is None or out_TE.shape == x_TE.shape
    return call("layer_norm", x_TE, layer_norm_reference, x_TE, weight_E, bias_E, eps, update_TE, out_TE)


def layer_norm_reference(
    x_TE: Tensor, weight_E: Tensor, bias_E: Tensor, eps: float, update_TE: Tensor | None, _out_TE: Tensor | None = None
) -> Tensor:
    if update_TE is not None:
        x_TE.add_(update_TE)
    return functional.layer_norm(x_TE, weight_E.shape, weight_E, bias_E, eps)
