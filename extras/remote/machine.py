"""The run's configuration on a machine that has joined: its own model directory, processors and files."""

import argparse
import os
import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from extras.remote.config import RemoteConfig
from extras.remote.messages import Admitted
from messages.config.server import Config
from messages.control.processes import worker_number
from messages.engine_names import rank_of
from messages.errors import BootError, UsageError
from runtime.model_files import is_weight_file
from supervisor.console import Console
from supervisor.manifest import digests_of
from supervisor.model.lookup import find_model, find_tokenizer


def make_config(admitted: Admitted, options: argparse.Namespace, console: Console) -> Config:
    """Returns the configuration of the engine here; this may fetch the model from the hub.

    Raises `UsageError` or `BootError` if the model is missing here or is a different one.
    """
    config = msgspec.json.decode(admitted.config, type=Config)
    requested = config.model
    if options.model or not Path(config.facts.model_dir).is_dir():
        model_dir = find_model(msgspec.structs.replace(requested, model=options.model or requested.model), console)
    else:
        model_dir = Path(config.facts.model_dir)
    check_is_same(admitted.model_files, model_dir)
    tokenizer_dir = Path(config.facts.tokenizer_dir)
    if not requested.tokenizer or not tokenizer_dir.is_dir():
        tokenizer_dir = find_tokenizer(requested, model_dir, console)
    return msgspec.structs.replace(
        config,
        model=msgspec.structs.replace(
            requested,
            cpu_threads=options.cpu_threads,
            device=options.device or requested.device_type,
        ),
        # The frames of the engine are kept on the head, by its proxy.
        run=msgspec.structs.replace(config.run, data_parallel=1, record="", black_box_mb=0),
        extras={name: section for name, section in config.extras.items() if name != RemoteConfig.EXTRA},
        num_remote_engines=0,
        max_engines=0,
        facts=msgspec.structs.replace(
            config.facts, model_dir=str(model_dir), tokenizer_dir=str(tokenizer_dir), vision=None
        ),
        first_engine=worker_number(admitted.name),
        joined_rank=rank_of(admitted.name),
    )


def check_processors(device: str, cpu_threads: int) -> None:
    """Raises `UsageError` for a device that is not a GPU's name, or for more threads than this machine has cores."""
    if device and not re.fullmatch(r"cuda:\d+", device):
        raise UsageError(f"--device: {device!r} is no GPU: name it as cuda:0")
    num_cores = len(os.sched_getaffinity(0))
    if cpu_threads > num_cores:
        raise UsageError(f"--cpu-threads {cpu_threads}: the engine may use {num_cores} cores here; give that at most")


def check_is_same(expected: Mapping[str, str], model_dir: Path) -> None:
    """Raises `BootError` if a file differs from the head's, or if the weights are in other files."""
    found = digests_of(model_dir)
    different = {name for name in expected.keys() & found.keys() if expected[name] != found[name]}
    different |= {name for name in expected.keys() ^ found.keys() if is_weight_file(name)}
    if different:
        raise BootError(
            f"the model in {model_dir} is not the head's: {', '.join(sorted(different))} "
            f"{'differ' if len(different) > 1 else 'differs'}; give the directory of the same model with --model"
        )
