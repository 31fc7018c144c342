"""The addresses of tensors, as C kernels take them."""

from torch import Tensor


def address_of(tensor: Tensor | None) -> int | None:
    assert tensor is None or tensor.is_contiguous()
    return None if tensor is None else tensor.data_ptr()


def addresses_of(*tensors: Tensor | None) -> list[int | None]:
    return [address_of(tensor) for tensor in tensors]
