"""The run's configuration on a machine that has joined: its own model directory, processors and files."""

import argparse
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from extras.remote.config import RemoteConfig
from extras.remote.file_messages import Directory
from extras.remote.messages import Admitted
from messages.config.server import Config
from messages.control.processes import worker_number
from messages.engine_names import rank_of
from messages.errors import BootError, UsageError
from runtime.model_files import is_weight_file
from supervisor.console import Console
from supervisor.manifest import digests_of
from supervisor.model.lookup import find_model

Fetch = Callable[[Directory, Path | None], Path]
"""Returns a directory with the head's files in it; those that a directory here has are not fetched."""


def make_config(admitted: Admitted, options: argparse.Namespace, console: Console, fetch: Fetch) -> Config:
    """Returns the configuration of the engine here; this may fetch the model from the hub, or its files from the head.

    Raises `UsageError` or `BootError` if the model here is a different one.
    """
    config = msgspec.json.decode(admitted.config, type=Config)
    requested, facts = config.model, config.facts
    model_dir = _find_here(admitted, config, options, console)
    is_part = config.run.pipeline_parallel > 1
    if model_dir is None or not check_is_same(admitted.model_files, model_dir, is_part=is_part):
        model_dir = fetch("model", model_dir)
    tokenizer_dir = Path(facts.tokenizer_dir)
    if not requested.tokenizer:
        tokenizer_dir = model_dir
    elif not tokenizer_dir.is_dir():
        tokenizer_dir = fetch("tokenizer", None)
    draft = facts.draft
    if draft is not None and not Path(draft.model_dir).is_dir():
        draft = msgspec.structs.replace(draft, model_dir=str(fetch("draft", None)))
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
            facts, model_dir=str(model_dir), tokenizer_dir=str(tokenizer_dir), draft=draft, vision=None
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


def _find_here(admitted: Admitted, config: Config, options: argparse.Namespace, console: Console) -> Path | None:
    """Returns the directory of the model on this machine (`--model`, the head's path, or by name), or `None`.

    Raises `UsageError` or `BootError` if `--model` names none.
    """
    head_dir, requested = Path(config.facts.model_dir), config.model
    if options.model:
        return find_model(msgspec.structs.replace(requested, model=options.model), console)
    if head_dir.is_dir():
        return head_dir
    try:
        found = find_model(requested, console)
    except (UsageError, BootError) as error:
        console.show(f"{error}\nasking the head for its files")
        return None
    is_bundled = not requested.model  # not every installation has the same one
    return None if is_bundled and digests_of(found) != admitted.model_files else found


def check_is_same(expected: Mapping[str, str], model_dir: Path, *, is_part: bool = False) -> bool:
    """Returns whether the directory has all weights and config.json. With `is_part` the head may have fewer than it.

    Raises `BootError` if a file differs from the head's, or if the weights are in other files.
    """
    found = digests_of(model_dir)
    missing = {name for name in expected.keys() - found.keys() if is_weight_file(name) or name == "config.json"}
    different = {name for name in expected.keys() & found.keys() if expected[name] != found[name]}
    different |= {name for name in found.keys() - expected.keys() if is_weight_file(name) and not is_part}
    if different:
        different |= {name for name in missing if is_weight_file(name)}
        raise BootError(
            f"the model in {model_dir} is not the head's: {', '.join(sorted(different))} "
            f"{'differ' if len(different) > 1 else 'differs'}; give the directory of the same model with --model"
        )
    return not missing
