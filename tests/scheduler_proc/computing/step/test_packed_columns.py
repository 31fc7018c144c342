import numpy as np
import torch

from scheduler_proc.computing.step.packed_columns import ALIGNMENT, PackedColumns, join, split


def test_columns_are_views_of_one_buffer_and_aligned() -> None:
    columns = PackedColumns({"a": (torch.int64, (3,)), "b": (torch.int32, (2, 0)), "c": (torch.float32, (2, 5))})
    assert columns.num_bytes == 2 * ALIGNMENT
    buffer = torch.full((columns.num_bytes + 9,), 77, dtype=torch.uint8)
    for name, array in columns.arrays(buffer).items():
        array[...] = ord(name)
    tensors = columns.tensors(buffer.clone())
    assert tensors["a"].tolist() == [97, 97, 97]
    assert tensors["b"].shape == (2, 0)
    assert tensors["c"].tolist() == [[99.0] * 5] * 2
    assert all(tensor.storage_offset() * tensor.itemsize % ALIGNMENT == 0 for tensor in tensors.values())
    assert buffer[-9:].tolist() == [77] * 9


def test_arrays_arrive_with_their_values_types_and_shapes() -> None:
    arrays = {
        "counts": np.arange(3, dtype=np.int32),
        "empty": np.empty(0, dtype=np.float32),
        "large": np.array([1 << 62, -5]),
        "read only": np.frombuffer(np.float32([0.5, -np.inf, np.nan]).tobytes(), np.float32),
        "strided": np.arange(20, dtype=np.int32).reshape(4, 5)[:, ::2],
    }
    columns = PackedColumns.like(arrays)
    host = torch.empty(columns.num_bytes, dtype=torch.uint8)
    columns.write(arrays, host)
    for name, tensor in columns.tensors(host).items():
        assert tensor.is_contiguous()
        assert tensor.data_ptr() % ALIGNMENT == 0
        assert tensor.numpy().dtype == arrays[name].dtype
        np.testing.assert_array_equal(tensor.numpy(), arrays[name])


def test_no_arrays_take_no_room() -> None:
    columns = PackedColumns.like({})
    assert (columns.num_bytes, columns.tensors(torch.empty(0, dtype=torch.uint8))) == (0, {})


def test_what_is_joined_can_be_split() -> None:
    tensors = [
        torch.tensor([1, -1], dtype=torch.int32),
        torch.empty(0, dtype=torch.int64),
        torch.tensor([[float("-inf")], [2.5]]),
        torch.tensor([1 << 40]),
    ]
    for some in (tensors, tensors[:1], tensors[1:2]):
        data = join(some)
        assert data.dtype == torch.uint8
        for part, tensor in zip(split(data, some), some, strict=True):
            assert part.dtype == tensor.dtype
            assert torch.equal(part, tensor)
