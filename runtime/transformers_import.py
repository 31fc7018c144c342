"""Imports transformers, which must use neither the network nor code of the hub here."""

import os
from importlib import import_module
from typing import Any


def import_transformers() -> Any:
    """Returns the library; it makes no request to the hub from now on, and loads no kernels of it.

    If Hugging Face's distribution `kernels` is installed, transformers would take our package of that name for it.
    """
    os.environ["HF_HUB_OFFLINE"] = "1"
    constants, transformers = import_module("huggingface_hub.constants"), import_module("transformers")
    setattr(constants, "HF_HUB_OFFLINE", True)  # noqa: B010 (it may have been imported before)
    for module in (transformers.utils, transformers.utils.import_utils):
        module.is_kernels_available = _is_never_available
    return transformers


def _is_never_available(*_: object, **__: object) -> bool:
    return False
