from concurrent.futures import ThreadPoolExecutor

import torch

from kernels.cpu.huge_memory import HUGE_PAGE
from kernels.cpu.huge_pages import CHUNK_BYTES, Chunk, allocate_from, empty_huge


def test_tensors_are_apart_and_aligned() -> None:
    tensors = [
        empty_huge((size, 3), torch.bfloat16).fill_(size) for size in (1, 100, 7, CHUNK_BYTES // 8, CHUNK_BYTES // 4)
    ]
    for tensor in tensors:
        assert tensor.is_contiguous()
        assert tensor.data_ptr() % 64 == 0
        assert bool((tensor == torch.tensor(len(tensor)).to(torch.bfloat16)).all())


def test_a_large_tensor_begins_a_huge_page() -> None:
    assert empty_huge((CHUNK_BYTES,), torch.uint8).data_ptr() % HUGE_PAGE == 0


def test_a_chunk_has_no_more_than_its_bytes() -> None:
    """The memory after them is not in the chunk's file."""
    chunk = Chunk(HUGE_PAGE)
    assert chunk.take((1,), torch.uint8) is not None
    assert chunk.take((HUGE_PAGE,), torch.uint8) is None
    assert chunk.take((HUGE_PAGE - 64,), torch.uint8) is not None
    assert chunk.take((1,), torch.uint8) is None


def test_nothing_is_a_tensor_too() -> None:
    assert empty_huge((0, 4), torch.float32).shape == (0, 4)


def test_another_thread_takes_of_another_chunk() -> None:
    """Else two threads could be given the same memory."""
    chunk = Chunk(HUGE_PAGE)
    with allocate_from(chunk), ThreadPoolExecutor(1) as other:
        theirs = other.submit(empty_huge, (16,), torch.uint8).result()
        assert chunk.find(theirs) is None
        assert chunk.find(empty_huge((16,), torch.uint8)) == 0
