"""Plans of attention, made on the host for each step: which program of a kernel computes what.

They are columns of the step, whose size depends only on the step's shape.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from kernels.dispatch import count_programs
from kernels.gpu.launch_table import count_tile_tokens, find_launch
from kernels.plans.decode_work import DecodeLayout, DecodeShape, DecodeWork, make_decode_scratch, plan_decode_work
from kernels.plans.prefill_tiles import max_prefill_tiles, plan_prefill_tiles
from messages.ring.steps import Batch
from scheduler_proc.computing.step.inputs import Arrays, StepInputs, StepShape


class AttentionPlans:
    """Plans attention of one shape with each of these windows, for up to `max_rows` decode rows."""

    def __init__(
        self,
        shape: DecodeShape,
        windows: tuple[int | None, ...],
        max_rows: int,
        shares_prefixes: bool,
        device: torch.device,
    ):
        self._shape, self._windows = shape, windows
        self._shares_prefixes = shares_prefixes
        self._num_programs = count_programs(shape, device)
        self._merges_in_kernel = bool(find_launch("decode_work", *shape.launch_shape)["merges"])
        self._tile_tokens = count_tile_tokens(*shape.launch_shape)
        self._scratch = make_decode_scratch(self._layout(max_rows), shape.head_dim, device)

    def planned(self, shape: StepShape, max_rows: int) -> StepShape:
        """Returns the shape with room for the plan; its decode part serves up to `max_rows` rows, if it has any."""
        layout = self._layout(max_rows) if shape.num_decode_rows else None
        num_tiles = max_prefill_tiles(shape.num_prefill_tokens, shape.num_prefill_rows, self._tile_tokens)
        return replace(shape, decode_layout=layout, windows=self._windows, num_tiles=num_tiles)

    def pack(self, batch: Batch, shape: StepShape, arrays: Arrays) -> None:
        """Writes the columns of the plan for `batch`, whose other columns are already in `arrays`."""
        num_decode, num_rows = batch.num_decode_rows, len(batch.query_lens) // 4
        if shape.decode_layout is not None:
            num_keys, tables = arrays["decode_num_keys"][:num_decode], arrays["decode_page_tables"][:num_decode]
            for window, plan in zip(shape.windows, arrays["decode_plan"], strict=True):
                plan_decode_work(shape.decode_layout, num_keys, tables, self._shape.page_size, plan, window)
        if shape.num_tiles:
            rows = slice(0, num_rows - num_decode)
            lens = arrays["prefill_query_lens"][rows], arrays["prefill_context_lens"][rows]
            plan_prefill_tiles(*lens, arrays["prefill_tiles"], self._tile_tokens)

    def add(self, inputs: StepInputs, shape: StepShape, tensors: Mapping[str, Tensor]) -> StepInputs:
        """Returns the inputs with the plan, whose columns are in `tensors`."""
        works = None
        if shape.decode_layout is not None:
            plans = zip(shape.windows, tensors["decode_plan"], strict=True)
            works = {window: DecodeWork(shape.decode_layout, plan, self._scratch) for window, plan in plans}
        return replace(inputs, decode_works=works, prefill_tiles=tensors.get("prefill_tiles"))

    def _layout(self, max_rows: int) -> DecodeLayout:
        shape = self._shape
        # A single row shares with no other, and plans that can share have larger products.
        shares_prefixes = self._shares_prefixes and max_rows > 1
        heads = shape.num_heads, shape.num_kv_heads
        return DecodeLayout(max_rows, *heads, self._num_programs, shares_prefixes, self._merges_in_kernel)
