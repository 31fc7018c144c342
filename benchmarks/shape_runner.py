"""The configuration and the runner of a well-known shape with random weights, without a server."""

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.model_shapes import SHAPES
from messages.config.server import Config
from scheduler_proc.computing.load_runner import load_runner
from scheduler_proc.computing.runner import Runner
from supervisor.flags import parse_flags
from supervisor.model.facts import read_model_facts
from supervisor.run import check_flags

LAYER_COUNTS = ("n_layer", "num_hidden_layers")


def make_shape(name: str, num_layers: int | None = None) -> dict[str, object]:
    """Returns the Hugging Face configuration, with fewer layers if `num_layers` says so."""
    shape = SHAPES[name]
    return shape if num_layers is None else shape | {key: num_layers for key in LAYER_COUNTS if key in shape}


def max_positions(shape: dict[str, object]) -> int:
    """Returns the longest context of the model."""
    return int(str(shape.get("n_positions") or shape["max_position_embeddings"]))


@contextmanager
def configured_shape(shape: dict[str, object], flags: Sequence[str]) -> Iterator[Config]:
    """The server's configuration for such a model with random weights, whose directory is there inside of the block.

    Raises `UsageError` for flags.
    """
    with tempfile.TemporaryDirectory(prefix="sluice-shape-") as scratch:
        model_dir = Path(scratch)
        (model_dir / "config.json").write_text(json.dumps(shape), encoding="utf-8")
        yield make_config(model_dir, ["--load-format", "dummy", *flags])


def make_config(model_dir: Path, flags: Sequence[str]) -> Config:
    """Returns the server's configuration for the model in a directory. Raises `UsageError` for flags."""
    sections: dict[str, Any] = dict(parse_flags(["--model", str(model_dir), *flags]))
    facts = read_model_facts(sections["model"], model_dir, model_dir, model_dir.name)
    return msgspec.structs.replace(check_flags(sections), facts=facts)


def load_shape(shape: dict[str, object], flags: Sequence[str]) -> Runner:
    """Returns a runner that is ready, as these flags of the server configure it.

    Raises `UsageError` for flags, `BootError` where it does not fit.
    """
    with configured_shape(shape, flags) as config:
        return load_runner(config, lambda text, fraction: None)
