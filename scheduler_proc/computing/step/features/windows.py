"""Window pages: layers with a window have pages of their own, and with them other slots and page tables."""

from collections.abc import Mapping
from dataclasses import replace
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from messages.config.server import Config
from messages.errors import BootError
from scheduler_proc.computing.step.inputs import InputColumn, StepFeature, StepInputs

read_tables = attrgetter("window_page_tables")


def _view(step: StepInputs, columns: Mapping[str, Tensor]) -> StepInputs:
    tables = columns["window_prefill_tables"]
    return replace(
        step,
        slots=columns["window_slots"],
        decode_page_tables=columns["window_decode_tables"],
        prefill_page_tables=tables,
        head_rows=None if step.head_rows is None else replace(step.head_rows, page_tables=tables),
    )


def find_window(config: Config, model: Any) -> int | None:
    """Returns the largest window of the model; `None` if no request is long enough to free window pages.

    Raises `BootError` for lower tiers, which do not keep them.
    """
    window = max((mixer.window or 0 for mixer in model.mixers if mixer.cache), default=0)
    num_pages = -(-config.facts.max_model_len // config.cache.block_size)
    if not window or count_steady(window, config.cache.block_size) >= num_pages:
        return None
    if config.cache.kv_disk or config.cache.kv_offload_gb:
        raise BootError(
            f"--kv-disk and --kv-offload-gb do not keep the pages of layers with a window; this model's is {window} "
            "tokens"
        )
    return window


def count_steady(window: int, page_size: int) -> int:
    """Returns the maximum number of window pages that a request uses between two steps."""
    return 1 + -(-(window - 1) // page_size)


WINDOWS = StepFeature(
    "windows",
    {
        "window_slots": InputColumn(torch.int64, "token", -1, attrgetter("window_slots")),
        "window_decode_tables": InputColumn(torch.int32, "decode row", -1, read_tables, is_table=True),
        "window_prefill_tables": InputColumn(torch.int32, "prefill row", -1, read_tables, is_table=True),
    },
    is_in=attrgetter("window_slots"),
    limit=lambda config, model, role: role == "main" and find_window(config, model) is not None,
    make_view=_view,
    dummy=lambda _, columns: {"window_slots": columns["slots"], "window_page_tables": columns["page_tables"]},
)


def windowed(step: StepInputs) -> StepInputs:
    """Returns the step as windowed layers see it: with the slots and page tables of their own pages, if any."""
    return step.view(WINDOWS) or step
