"""A `flashinfer` module of the interface that we use, which checks what it is given and computes with torch.

It is as strict as the library's documentation: sizes and number formats, a plan before each run and outside of graphs,
fixed buffers in graphs, a plan's memory left alone until it has been used.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from scheduler_proc.computing.backends.cuda.device import Pool, Work
from tests.scheduler_proc.computing.backends.cuda.late_device import LateDevice


class StandIn(ModuleType):
    """The module; `is_in_graph` while a graph is replayed, `num_plans` by whether they are for one."""

    def __init__(self) -> None:
        super().__init__("flashinfer")
        self.is_in_graph = False
        self.num_plans = {False: 0, True: 0}
        self.copying: list[Wrapper] = []
        self.BatchDecodeWithPagedKVCacheWrapper = lambda *args, **named: DecodeWrapper(self, *args, **named)
        self.BatchPrefillWithPagedKVCacheWrapper = lambda *args, **named: Wrapper(self, *args, **named)


class MarkingDevice(LateDevice):
    """Copies from pinned memory are done when a mark behind them is waited for, and not before."""

    def __init__(self, library: StandIn, **named: Any):
        super().__init__(**named)
        self._library = library

    def mark(self) -> Callable[[], None]:
        done = list(self._library.copying)

        def wait() -> None:
            self._library.copying = [wrapper for wrapper in self._library.copying if wrapper not in done]

        return wait

    def capture(self, work: Work, pool: Pool) -> Work:
        def work_in_graph() -> None:
            self._library.is_in_graph = True
            work()
            self._library.is_in_graph = False

        return super().capture(work_in_graph, pool)


class Wrapper:
    """For rows of many new tokens."""

    is_causal = True

    def __init__(
        self,
        library: StandIn,
        float_workspace_buffer: Tensor,
        kv_layout: str,
        *,
        use_cuda_graph: bool = False,
        paged_kv_indptr_buffer: Tensor | None = None,
        paged_kv_indices_buffer: Tensor | None = None,
        paged_kv_last_page_len_buffer: Tensor | None = None,
    ):
        assert kv_layout == "NHD"
        self._library = library
        self._is_fixed = use_cuda_graph
        self._buffers = paged_kv_indptr_buffer, paged_kv_indices_buffer, paged_kv_last_page_len_buffer
        assert all((buffer is not None) == use_cuda_graph for buffer in self._buffers)
        self.reset_workspace_buffer(float_workspace_buffer, torch.zeros(64, dtype=torch.uint8))

    def reset_workspace_buffer(self, float_workspace_buffer: Tensor, int_workspace_buffer: Tensor) -> None:
        assert float_workspace_buffer.dtype == int_workspace_buffer.dtype == torch.uint8
        assert not float_workspace_buffer.any()
        assert float_workspace_buffer.nbytes == 128 << 20
        self._plan_memory = int_workspace_buffer

    def plan(
        self,
        qo_indptr: Tensor,
        indptr: Tensor,
        indices: Tensor,
        last_page_len: Tensor,
        *sizes: int,
        causal: bool = False,
        sm_scale: float,
        q_data_type: torch.dtype,
        kv_data_type: torch.dtype,
    ) -> None:
        assert not self._library.is_in_graph, "a plan cannot be part of a graph"
        assert self not in self._library.copying, (
            "the last plan is still being copied from the memory that this one takes"
        )
        assert causal == self.is_causal
        assert {column.dtype for column in (qo_indptr, indptr, indices, last_page_len)} == {torch.int32}
        self._num_heads, self._num_kv_heads, self._head_dim, self._page_size = sizes
        assert q_data_type == kv_data_type
        self._dtype, self._scale = q_data_type, sm_scale
        assert len(qo_indptr) == len(indptr) == len(last_page_len) + 1 >= 2
        assert qo_indptr[0] == indptr[0] == 0
        assert (indptr.diff() >= 1).all()
        assert indptr[-1] == len(indices)
        assert last_page_len.min() >= 1
        assert last_page_len.max() <= self._page_size
        self._query_starts = qo_indptr.tolist()
        if self._is_fixed:
            for buffer, column in zip(self._buffers, (indptr, indices, last_page_len), strict=True):
                assert buffer is not None
                assert buffer.dtype == torch.int32
                buffer[: len(column)].copy_(column)
            assert len(last_page_len) == len(self._buffers[2]), "a graph's number of rows is fixed"  # pyright: ignore
        else:
            self._buffers = indptr, indices, last_page_len
        self._library.num_plans[self._is_fixed] += 1
        self._library.copying.append(self)
        self._plan_memory.fill_(sum(self._library.num_plans.values()) % 251)
        self._ticket = self._plan_memory[0].item()

    def run(self, q: Tensor, paged_kv_cache: tuple[Tensor, Tensor], *, out: Tensor) -> Tensor:
        assert self._plan_memory[0] == self._ticket, "another plan has taken the memory of this one"
        assert self._is_fixed or not self._library.is_in_graph
        assert q.shape == out.shape == (self._query_starts[-1], self._num_heads, self._head_dim)
        assert q.stride(2) == 1
        assert out.is_contiguous()
        assert q.dtype == out.dtype == self._dtype
        for pages in paged_kv_cache:
            assert pages.shape[1:] == (self._page_size, self._num_kv_heads, self._head_dim)
            assert pages.dtype == self._dtype
        starts, indices, last_page_lens = self._buffers
        assert starts is not None
        assert indices is not None
        assert last_page_lens is not None
        for row, last_page_len in enumerate(last_page_lens.tolist()):
            page_ids = indices[starts[row] : starts[row + 1]].long()
            num_keys = (len(page_ids) - 1) * self._page_size + last_page_len
            tokens = slice(*self._query_starts[row : row + 2])
            key, value = (pages[page_ids].flatten(0, 1)[:num_keys].transpose(0, 1) for pages in paged_kv_cache)
            num_new = tokens.stop - tokens.start
            positions = torch.arange(num_keys)
            mask = positions[None] <= positions[num_keys - num_new :, None]
            attended = functional.scaled_dot_product_attention(
                q[tokens].transpose(0, 1)[None],
                key[None],
                value[None],
                attn_mask=mask,
                scale=self._scale,
                enable_gqa=True,
            )
            out[tokens] = attended[0].transpose(0, 1)
        return out


class DecodeWrapper(Wrapper):
    """For rows of one new token each."""

    is_causal = False

    def __init__(self, *args: Any, use_tensor_cores: bool, **named: Any):
        assert use_tensor_cores, "without, only some numbers of query heads a key/value head have a kernel"
        super().__init__(*args, **named)

    def plan(self, indptr: Tensor, *args: Any, **named: Any) -> None:
        super().plan(torch.arange(len(indptr), dtype=torch.int32), indptr, *args, **named)
