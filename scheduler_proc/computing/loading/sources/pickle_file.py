"""Tensors in a file of `torch.save`, of which no code is run."""

import logging
import pickle
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from messages.errors import BootError
from scheduler_proc.computing.loading.sources.tensor_file import NUMBERS, unreadable

STATE_KEYS = ("state_dict", "model_state_dict", "model")
"""Where training scripts put the tensors."""

log = logging.getLogger("sluice.weights")


class PickleFile:
    """See `TensorFile`."""

    def __init__(self, path: Path):
        self._path = path

    def forms(self) -> dict[str, str]:
        return dict.fromkeys(self._load(), NUMBERS)

    def read(self, names: list[str]) -> Iterator[tuple[str, Tensor]]:
        tensors = self._load()
        for name in names:
            yield name, tensors[name]

    def _load(self) -> dict[str, Tensor]:
        path = self._path
        try:
            # Files from before torch 1.6 are no zip archives and cannot be mapped.
            state: Any = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
        except (RuntimeError, OSError, EOFError, ValueError, pickle.UnpicklingError) as error:
            raise unreadable(path, error) from None
        if not isinstance(state, dict):
            raise BootError(f"{path}: does not hold named tensors")
        for key in STATE_KEYS:
            if isinstance(state.get(key), dict):
                log.info("%s: the tensors are those of its %r", path, key)
                state = state[key]
        return {str(name): value for name, value in state.items() if isinstance(value, Tensor)}
