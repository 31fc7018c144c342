"""`supervisor.model.fetch` in a process that had imported the hub's library before it got its environment."""

import importlib

from huggingface_hub import constants

from supervisor.model import fetch


def main() -> int:
    importlib.reload(constants)
    return fetch.main()
