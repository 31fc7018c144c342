import numpy as np
import pytest
import torch

from scheduler_proc.computing.step.packed_columns import ALIGNMENT
from scheduler_proc.computing.step.transfer import send_arrays
from tests.kernels.cases import DEVICES


@pytest.mark.parametrize("device", DEVICES)
def test_arrays_arrive_with_their_values_types_and_shapes(device: str) -> None:
    arrays = (
        np.arange(3, dtype=np.int32),
        np.empty(0, dtype=np.float32),
        np.array([1 << 62, -5]),
        np.frombuffer(np.float32([0.5, -np.inf, np.nan]).tobytes(), np.float32),
        np.arange(20, dtype=np.int32).reshape(4, 5)[:, ::2],
    )
    tensors = send_arrays(arrays, torch.device(device))
    for tensor, array in zip(tensors, arrays, strict=True):
        assert (tensor.device.type, tensor.is_contiguous()) == (device, True)
        assert tensor.data_ptr() % ALIGNMENT == 0
        received = tensor.cpu().numpy()
        assert received.dtype == array.dtype
        np.testing.assert_array_equal(received, array)


def test_what_arrives_is_a_copy() -> None:
    array = np.zeros(3, dtype=np.int32)
    (tensor,) = send_arrays([array], torch.device("cpu"))
    tensor.fill_(7)
    assert array.tolist() == [0, 0, 0]


def test_no_arrays_make_no_buffer() -> None:
    assert send_arrays((), torch.device("cpu")) == ()
