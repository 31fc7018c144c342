"""Finds out whether a checkpoint has a head of its own although config.json ties it to the embedding."""

import logging
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kernels.arguments.block_rows import BlockRows
from scheduler_proc.computing.loading.sources.tensor_file import StoredTensor
from scheduler_proc.computing.model.description import ModelDescription
from scheduler_proc.computing.model.families.family import HEAD_NAME, Family

if TYPE_CHECKING:
    from scheduler_proc.computing.loading.checkpoint import (
        Checkpoint,  # it needs safetensors, which random weights do not
    )

log = logging.getLogger("sluice.weights")


def has_own_head(model: ModelDescription, family: Family, checkpoint: "Checkpoint") -> bool:
    """True if config.json ties the head to the embedding and the checkpoint has another head, which is logged."""
    source = next(source for source in family.list_sources(model) if source.target == "embedding")
    names = [name for name in (source.name, source.name.removeprefix(family.prefix)) if name in checkpoint.files]
    if not model.has_tied_head or HEAD_NAME not in checkpoint.files or not names:
        return False
    if not (checkpoint.files[names[0]].is_file() and checkpoint.files[HEAD_NAME].is_file()):
        return False  # a stage that has neither
    tensors = dict(checkpoint.read({names[0], HEAD_NAME}))
    embedding, head = tensors[names[0]], tensors[HEAD_NAME]
    if _are_equal(embedding, head):
        return False
    log.warning(
        "config.json ties the head to the embedding (tie_word_embeddings), but %s differs from it: it is used",
        HEAD_NAME,
    )
    return True


def _are_equal(first: StoredTensor, second: StoredTensor) -> bool:
    if isinstance(first, BlockRows) and isinstance(second, BlockRows):
        return first.form == second.form and torch.equal(first.blocks, second.blocks)
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        return first.dtype == second.dtype and torch.equal(first, second)
    return False
