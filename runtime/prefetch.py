"""Prefetches the weights from the disk into the page cache while torch is being imported."""

import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from messages.config.server import ModelConfig
from runtime.model_files import WEIGHT_FILES

PIECE_BYTES = 512 << 10
"""One call makes Linux read at most the disk's maximum request size."""

MAX_OF_MEMORY = 0.5
"""Larger models are not prefetched: their first pages might be evicted before they are loaded."""


def prefetch(model: ModelConfig, model_dir: Path) -> None:
    """Makes the kernel start reading the weight files. Returns at once; errors are left to the loader.

    No-op for quantized weights, which mostly come from a file of their own.
    """
    if model.load_format == "dummy" or model.quantization != "none":
        return
    found = [sorted(model_dir.glob(files.pattern)) for files in WEIGHT_FILES.values()]
    files = next((files for files in found if files), found[-1])
    # In a thread, because a call blocks while the disk is busy.
    threading.Thread(target=_ask_for, args=(files,), name="read-ahead", daemon=True).start()


def _ask_for(files: Sequence[Path]) -> None:
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError, AttributeError):  # systems without the call
        if sum(file.stat().st_size for file in files) > MAX_OF_MEMORY * memory_bytes:
            return
        for file in files:
            with file.open("rb") as opened:
                for offset in range(0, file.stat().st_size, PIECE_BYTES):
                    os.posix_fadvise(opened.fileno(), offset, PIECE_BYTES, os.POSIX_FADV_WILLNEED)
