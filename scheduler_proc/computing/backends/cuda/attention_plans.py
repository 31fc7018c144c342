"""Plans of attention, made on the host for each step: which program of a kernel computes what.

They are columns of the step, whose size depends only on the step's shape.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from kernels.dispatch import count_programs
from kernels.gpu.fusions import takes_long_prompts
from kernels.gpu.latent_launch import latent_tiles_of
from kernels.gpu.launch_table import count_tile_tokens, find_launch, has_fixed_launches
from kernels.plans.decode_work import (
    DecodeLayout,
    DecodeScratch,
    DecodeShape,
    DecodeWork,
    PlanLayout,
    make_decode_scratch,
    plan_decode_work,
)
from kernels.plans.latent_tiles import LatentLayout, LatentTiles, plan_latent_work
from kernels.plans.prefill_tiles import LONG_TILES, PrefillTiles, are_long
from kernels.plans.split_work import SplitLayout, make_split_scratch, plan_split_work
from messages.ring.steps import Batch
from scheduler_proc.computing.step.inputs import AttentionKind, StepInputs
from scheduler_proc.computing.step.packing import Arrays, StepShape

Tiles = PrefillTiles | LatentTiles


class ShapePlans:
    """The size of plans for one shape of heads, and the memory that its kernels share."""

    plan_decode: Callable[..., None] = staticmethod(plan_decode_work)

    def __init__(self, shape: DecodeShape, max_rows: int, shares_prefixes: bool, device: torch.device):
        self._heads = shape.num_heads, shape.num_kv_heads
        self._shares_prefixes = shares_prefixes
        self._num_programs = count_programs(shape, device)
        self._merges_in_kernel = bool(find_launch("decode_work", *shape.launch_shape)["merges"])
        self.tiles = PrefillTiles(count_tile_tokens(*shape.launch_shape))
        self.scratch = make_decode_scratch(self.layout(max_rows), shape.head_dim, device)

    def layout(self, max_rows: int) -> DecodeLayout:
        # A single row shares with no other, and plans that can share have larger products.
        shares_prefixes = self._shares_prefixes and max_rows > 1
        return DecodeLayout(max_rows, *self._heads, self._num_programs, shares_prefixes, self._merges_in_kernel)


class SplitPlans:
    """The same with fixed launches: a list for few rows or many is as long, and rows read shared pages each."""

    plan_decode: Callable[..., None] = staticmethod(plan_split_work)

    def __init__(self, shape: DecodeShape, max_rows: int, _shares_prefixes: bool, device: torch.device):
        self._num_heads = shape.num_heads
        self.tiles = PrefillTiles(count_tile_tokens(*shape.launch_shape))
        self.scratch = make_split_scratch(self.layout(max_rows), shape.head_dim, device)

    def layout(self, max_rows: int) -> SplitLayout:
        return SplitLayout(max_rows, self._num_heads)


class LatentPlans:
    """The same of attention to latents, with fixed launches and without."""

    plan_decode: Callable[..., None] = staticmethod(plan_latent_work)

    def __init__(self, shape: DecodeShape, _max_rows: int, _shares_prefixes: bool, device: torch.device):
        assert shape.latent_rank is not None
        sizes = shape.num_heads, shape.latent_rank, shape.head_dim - shape.latent_rank, shape.launch_shape[2]
        self.tiles = latent_tiles_of(False, sizes)
        self._decode_tiles = latent_tiles_of(True, sizes)
        unread = torch.empty(0, device=device)
        self.scratch = DecodeScratch(unread, unread, unread)

    def layout(self, max_rows: int) -> LatentLayout:
        return LatentLayout(self._decode_tiles, max_rows)


class AttentionPlans:
    """Plans the attention of layers of these kinds, each with its shape, for up to `max_rows` decode rows.

    A model whose layers are all recurrent has none.
    """

    def __init__(
        self,
        shapes: Mapping[AttentionKind, DecodeShape],
        max_rows: int,
        shares_prefixes: bool,
        device: torch.device,
    ):
        self._page_size = max((shape.page_size for shape in shapes.values()), default=0)
        make = SplitPlans if has_fixed_launches() else ShapePlans
        plans = {
            shape: (make if shape.latent_rank is None else LatentPlans)(shape, max_rows, shares_prefixes, device)
            for shape in dict.fromkeys(shapes.values())
        }
        self._kinds = {kind: plans[shape] for kind, shape in shapes.items()}
        self._tiles: Mapping[AttentionKind, Tiles] = {kind: plan.tiles for kind, plan in self._kinds.items()}
        self._long_kinds = [kind for kind, shape in shapes.items() if kind[-1] is None and takes_long_prompts(shape)]

    def planned(self, shape: StepShape, max_rows: int) -> StepShape:
        """Returns the shape with room for the plans; their decode part serves up to `max_rows` rows, if it has any."""
        layouts: tuple[PlanLayout, ...] = ()
        if shape.num_decode_rows:
            layouts = tuple(plans.layout(max_rows) for plans in self._kinds.values())
        sizes = shape.num_prefill_tokens, shape.num_prefill_rows
        num_tiles = tuple(tiles.max_lines(*sizes) for tiles in self._list_tiles(shape))
        return replace(shape, decode_layouts=layouts, num_tiles=num_tiles)

    def pack(self, batch: Batch, shape: StepShape, arrays: Arrays) -> None:
        """Writes the columns of the plans for `batch`, whose other columns are already in `arrays`."""
        num_decode, num_rows = batch.num_decode_rows, len(batch.query_lens) // 4
        num_keys, tables = arrays["decode_num_keys"][:num_decode], arrays["decode_page_tables"][:num_decode]
        for index, (layout, (kind, plans)) in enumerate(zip(shape.decode_layouts, self._kinds.items(), strict=False)):
            plans.plan_decode(layout, num_keys, tables, self._page_size, arrays[f"decode_plan_{index}"], kind[-1])
        rows = slice(0, num_rows - num_decode)
        lens = arrays["prefill_query_lens"][rows], arrays["prefill_context_lens"][rows]
        for index, tiles in enumerate(self._list_tiles(shape)):
            tiles.plan(*lens, arrays[f"prefill_tiles_{index}"])

    def add(self, inputs: StepInputs, shape: StepShape, tensors: Mapping[str, Tensor]) -> StepInputs:
        """Returns the inputs with the plans, whose columns are in `tensors`."""
        works, tiles = None, None
        if shape.decode_layouts:
            works = {
                kind: DecodeWork(layout, tensors[f"decode_plan_{index}"], plans.scratch)
                for index, (layout, (kind, plans)) in enumerate(
                    zip(shape.decode_layouts, self._kinds.items(), strict=True)
                )
            }
        lists = self._list_tiles(shape)
        if lists:
            columns = [tensors[f"prefill_tiles_{index}"] for index in range(len(lists))]
            tiles = {kind: columns[lists.index(its)] for kind, its in self._find_tiles(shape).items()}
        long_kinds = self._long_kinds if self._is_long(shape) else ()
        return replace(inputs, decode_works=works, prefill_tiles=tiles, long_kinds=long_kinds)

    def _list_tiles(self, shape: StepShape) -> Sequence[Tiles]:
        """Returns how the tokens of prompts become tiles, once for all kinds with the same tiles."""
        return list(dict.fromkeys(self._find_tiles(shape).values())) if shape.num_prefill_tokens else []

    def _find_tiles(self, shape: StepShape) -> Mapping[AttentionKind, Tiles]:
        return {**self._tiles, **dict.fromkeys(self._long_kinds, LONG_TILES)} if self._is_long(shape) else self._tiles

    def _is_long(self, shape: StepShape) -> bool:
        return are_long(shape.num_prefill_tokens, shape.num_prefill_rows, shape.num_pages * self._page_size)
