"""How a model in GGUF pools its vectors, as the files that sentence-transformers has for it."""

import json
from pathlib import Path

from messages.errors import BootError, quoted
from runtime.gguf.gguf_file import GgufFile

MODES = {1: "mean", 2: "cls", 3: "lasttoken"}
"""By llama.cpp's number of `pooling_type`. It has 0 for none."""

MODULES = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}


def write_pooling(model: GgufFile, directory: Path) -> None:
    """Writes the files of a model of vectors; none for others. Raises `BootError` for a way that is not supported."""
    key = f"{model.architecture}.pooling_type"
    kind: object = model.metadata.get(key, 0)
    if type(kind) is int and kind == 0:
        return
    if type(kind) is not int or kind not in MODES:
        what = "4 is that of a reranker, whose head is not supported" if kind == 4 else "it is unknown"
        supported = ", ".join(f"{number} ({mode})" for number, mode in MODES.items())
        raise BootError(f"metadata {key} is {quoted(kind)}: {what}; supported are {supported}")
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{name}"}
        for index, (name, path) in enumerate(MODULES.items())
    ]
    (directory / "modules.json").write_text(json.dumps(modules, indent=2) + "\n", encoding="utf-8")
    pooling = directory / MODULES["Pooling"]
    pooling.mkdir()
    (pooling / "config.json").write_text(json.dumps({"pooling_mode": MODES[kind]}) + "\n", encoding="utf-8")
