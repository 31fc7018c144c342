"""A directory from which a server serves a well-known shape with random weights."""

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from messages.errors import UsageError

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


@contextmanager
def served_shape(shape: dict[str, object], tokenizer: Path) -> Iterator[list[str]]:
    """The server's flags for the shape, whose directory is there inside of the block. Raises `UsageError`."""
    with tempfile.TemporaryDirectory(prefix="sluice-shape-") as model_dir:
        write_model(Path(model_dir), shape, tokenizer)
        yield ["--model", model_dir, "--load-format", "dummy"]


def write_model(model_dir: Path, shape: dict[str, object], tokenizer: Path) -> None:
    """Writes a directory that can be served without weights. Raises `UsageError` where there is no tokenizer."""
    (model_dir / "config.json").write_text(json.dumps(shape), encoding="utf-8")
    if not (tokenizer / TOKENIZER_FILES[0]).is_file():
        raise UsageError(f"--tokenizer {tokenizer}: it has no {TOKENIZER_FILES[0]}")
    for name in TOKENIZER_FILES:
        if (tokenizer / name).is_file():
            shutil.copy(tokenizer / name, model_dir / name)
