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
