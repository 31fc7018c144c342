"""Attention by FlashInfer's kernels (decision 0049), planned by its wrappers outside of the captured graphs.

Not run on a GPU. Interface: https://docs.flashinfer.ai, `BatchDecodeWithPagedKVCacheWrapper` and
`BatchPrefillWithPagedKVCacheWrapper`. A wrapper is planned once for each step and then run for each layer.

Shape legend: R rows (decode rows and their padding, then prefill rows), C prefill rows, P page ids of all rows,
T tokens, H query heads, D head dimension.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from kernels.arguments.paged_kv import PagedKV
from kernels.plans.decode_work import DecodeShape
from messages.errors import BootError
from messages.ring.steps import Batch
from scheduler_proc.computing.backends.cuda.device import GpuDevice
from scheduler_proc.computing.step.inputs import Arrays, StepInputs, StepShape

HEAD_DIMS = (64, 128, 256)
DTYPES = (torch.bfloat16, torch.float16)
FLOAT_WORKSPACE_BYTES, INT_WORKSPACE_BYTES = 128 << 20, 8 << 20
"""What FlashInfer recommends for the results of split keys, and what a wrapper of its has for its plan."""

Wrapper = Any


class PagePlan(NamedTuple):
    """The pages of a step's rows, on the host. The page ids themselves are a column of the step."""

    page_starts: np.ndarray
    """int32 [R + 1]: where each row's page ids begin, and the end."""
    last_page_lens: np.ndarray
    """int32 [R]: tokens in the row's last page."""
    query_starts: np.ndarray
    """int32 [C + 1]: where each prefill row's new tokens begin, and the end."""


class FlashInferAttention:
    """The `AttentionBackend` of FlashInfer for attention of a shape. Raises `BootError` where it cannot compute it.

    Captured are steps of decode rows alone, each with a wrapper of its own, whose buffers are fixed. A wrapper writes
    its plan into pinned memory and copies it from there, so no step is planned before the copies of the last one have
    been done. They come before that step's own work: where steps overlap, next to nothing is left to wait for.
    """

    captures_prefills = False

    def __init__(self, shape: DecodeShape, scale: float, device: GpuDevice):
        self._library = _import_library(shape)
        self._device = device
        self._page_size = shape.page_size
        self._sizes = shape.num_heads, shape.num_kv_heads, shape.head_dim, shape.page_size
        self._options = {"q_data_type": shape.dtype, "kv_data_type": shape.dtype, "sm_scale": scale}
        self._workspace = self._allocate(FLOAT_WORKSPACE_BYTES)
        self._decode = self._library.BatchDecodeWithPagedKVCacheWrapper(self._workspace, "NHD", use_tensor_cores=True)
        self._prefill = self._library.BatchPrefillWithPagedKVCacheWrapper(self._workspace, "NHD")
        # One for all captured steps: each is planned anew before it runs.
        self._captured_workspace = self._allocate(INT_WORKSPACE_BYTES)
        self._captured: dict[int, tuple[Wrapper, Tensor]] = {}
        self._wait_for_copies: Callable[[], None] = device.mark()

    def planned(self, shape: StepShape, max_rows: int) -> StepShape:
        num_rows = shape.num_decode_rows + shape.num_prefill_rows
        return replace(shape, num_pages=0, num_page_ids=num_rows * shape.num_pages)

    def pack(self, batch: Batch, shape: StepShape, arrays: Arrays) -> PagePlan:
        """A row that is padding reads one key, whatever is in slot 0."""
        prefill_lens = arrays["prefill_query_lens"]
        num_keys = np.concatenate((arrays["decode_num_keys"], prefill_lens + arrays["prefill_context_lens"])).clip(1)
        num_pages = -(-num_keys // self._page_size)
        page_starts = _starts(num_pages)
        tables = np.frombuffer(batch.page_tables, np.int32).reshape(-1, batch.num_pages_per_row)
        # Only a captured step has padding, and its rows are decode rows: those of the batch come first.
        page_ids = tables[np.arange(batch.num_pages_per_row) < num_pages[: len(tables), None]]
        arrays["page_ids"][: len(page_ids)] = page_ids
        arrays["page_ids"][len(page_ids) : page_starts[-1]] = 0
        return PagePlan(page_starts, num_keys - (num_pages - 1) * self._page_size, _starts(prefill_lens))

    def add(self, inputs: StepInputs, shape: StepShape, tensors: Mapping[str, Tensor], plan: PagePlan) -> StepInputs:
        num_decode, page_ids, decode = shape.num_decode_rows, tensors["page_ids"], self._decode
        if shape.is_captured:
            decode = self._make_captured(num_decode, page_ids)
            self._captured[num_decode] = decode, page_ids
        self._plan(decode, num_decode, page_ids, plan)
        return replace(inputs, attend=partial(self._attend, decode, num_decode))

    def launch(self, shape: StepShape, plan: PagePlan) -> None:
        decode, page_ids = self._captured[shape.num_decode_rows]
        self._plan(decode, shape.num_decode_rows, page_ids, plan)

    def _make_captured(self, num_rows: int, page_ids: Tensor) -> Wrapper:
        """Returns a wrapper for so many rows, which reads page ids where those of each step will be."""
        wrapper = self._library.BatchDecodeWithPagedKVCacheWrapper(
            self._workspace,
            "NHD",
            use_cuda_graph=True,
            use_tensor_cores=True,
            paged_kv_indptr_buffer=page_ids.new_zeros(num_rows + 1),
            paged_kv_indices_buffer=page_ids,
            paged_kv_last_page_len_buffer=page_ids.new_zeros(num_rows),
        )
        wrapper.reset_workspace_buffer(self._workspace, self._captured_workspace)
        return wrapper

    def _plan(self, decode: Wrapper, num_decode: int, page_ids: Tensor, plan: PagePlan) -> None:
        """Launches what `decode` and the wrapper of prefills copy to the device for the step that comes next."""
        self._wait_for_copies()
        starts, lens = plan.page_starts, plan.last_page_lens
        middle, end = starts[num_decode], starts[-1]
        if num_decode:
            pages = _host(starts[: num_decode + 1]), page_ids[:middle], _host(lens[:num_decode])
            decode.plan(*pages, *self._sizes, **self._options)
        if len(lens) > num_decode:
            pages = _host(starts[num_decode:] - middle), page_ids[middle:end], _host(lens[num_decode:])
            self._prefill.plan(_host(plan.query_starts), *pages, *self._sizes, causal=True, **self._options)
        self._wait_for_copies = self._device.mark()

    def _attend(self, decode: Wrapper, num_decode: int, query_THD: Tensor, cache: PagedKV, out_THD: Tensor) -> None:
        shape = -1, cache.page_size, cache.num_heads, cache.head_dim
        kv = cache.keys.view(shape), cache.values.view(shape)
        if num_decode:
            decode.run(query_THD[:num_decode], kv, out=out_THD[:num_decode])
        if num_decode < len(query_THD):
            self._prefill.run(query_THD[num_decode:], kv, out=out_THD[num_decode:])

    def _allocate(self, num_bytes: int) -> Tensor:
        return torch.zeros(num_bytes, dtype=torch.uint8, device=self._device.torch_device)


def _import_library(shape: DecodeShape) -> Any:
    """Returns FlashInfer's module."""
    problem = ""
    if shape.head_dim not in HEAD_DIMS:
        problem = (
            f"FlashInfer has kernels for heads of {', '.join(map(str, HEAD_DIMS))}, the model's are {shape.head_dim}"
        )
    elif shape.dtype not in DTYPES:
        problem = "FlashInfer computes bfloat16 and float16: take --dtype bfloat16"
    try:
        if not problem:
            return import_module("flashinfer")
    except ImportError as error:
        problem = f"FlashInfer cannot be imported ({error}): pip install flashinfer-python"
    raise BootError(f"--attention-backend flashinfer: {problem}; --attention-backend triton needs nothing more")


def _starts(lens: np.ndarray) -> np.ndarray:
    """Returns where each of these begins and where the last one ends, int32."""
    starts = np.zeros(len(lens) + 1, np.int32)
    np.cumsum(lens, out=starts[1:])
    return starts


def _host(column: np.ndarray) -> Tensor:
    return torch.from_numpy(column)
