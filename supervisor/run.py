"""From the command line to the exit code: configuration, model, socket, run directory, and then the supervisor."""

import difflib
import json
import os
import re
import shlex
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from extras.remote.join_keys import check_address, make_keys
from messages.config.server import Config, ModelConfig, RunConfig
from messages.control.processes import FRONTEND, RING
from messages.engines import SCHEDULER, rank_name
from messages.errors import BootError, UsageError
from runtime.lifeline import make_lifeline
from runtime.prefetch import prefetch
from runtime.run_dir import RunDir, claim, default_path
from supervisor.child import Command, command_of_worker
from supervisor.console import Console
from supervisor.early_scheduler import EarlyScheduler
from supervisor.flags import parse_flags
from supervisor.listener import base_url, open_listener
from supervisor.manifest import claim_recording, make_manifest, write_manifest
from supervisor.model.draft import add_draft_facts
from supervisor.model.facts import read_model_facts
from supervisor.model.lookup import find_model, find_tokenizer, model_name
from supervisor.model.weight_bytes import find_weight_bytes
from supervisor.process_group import Site
from supervisor.python_process import python_command
from supervisor.restarts import check_rules, split_rule
from supervisor.signals import SignalPipe
from supervisor.supervisor import Supervisor

PACKAGES = {FRONTEND: "frontend"} | {kind: f"{kind}_proc" for kind in RING}
"""By process."""

PROXY = "extras.remote.proxy"
"""The module of a process that stands for an engine on another machine."""

ANY_PORT = "tcp://0.0.0.0:*"

TOKENIZER = "tokenizer"
ONE_OF_EACH: Mapping[str, int] = {}

USAGE_EXIT_CODE = 2
FAILURE_EXIT_CODE = 1
INTERRUPTED_EXIT_CODE = 130


def launch(arguments: list[str], early_scheduler: EarlyScheduler | None = None) -> int:
    """Runs a server until it is stopped; returns the exit code, after one message on standard error for a failure.

    `early_scheduler` becomes its scheduler, or ends.
    """
    console = Console()
    began_s = time.monotonic()
    try:
        sections: dict[str, Any] = parse_flags(arguments)
        console.is_json = sections["run"].log_format == "json"
        config = build_config(sections, console)
        run = config.run
        num_workers = {FRONTEND: run.frontend_workers, TOKENIZER: run.tokenizer_workers, SCHEDULER: run.data_parallel}
        commands = server_commands(run.external, num_workers, len(run.remote_engines), run.tensor_parallel, run.ray)
        return serve(config, commands, console, began_s, early_scheduler)
    except (UsageError, BootError) as error:
        console.say(f"launch.py: {error}", "error")
        return USAGE_EXIT_CODE if isinstance(error, UsageError) else FAILURE_EXIT_CODE
    except KeyboardInterrupt:
        return INTERRUPTED_EXIT_CODE
    finally:
        if early_scheduler is not None:
            early_scheduler.end()
        console.close()


def build_config(sections: dict[str, Any], console: Console | None = None) -> Config:
    """Returns the whole configuration, with the facts about the model; this may fetch the model from the hub."""
    run = _set_range_of_engines(sections["run"])
    model = sections["model"] = choose_devices(sections["model"], run.most_engines * run.tensor_parallel)
    run = sections["run"] = _place_by_ray(run)
    _check_names("--external", run.external)
    if FRONTEND in run.external and run.frontend_workers > 1:
        raise UsageError("--frontend-workers: a frontend that is started by hand binds the port alone; leave it at 1")
    if SCHEDULER in run.external and run.tensor_parallel > 1:
        raise UsageError("--tensor-parallel: the launcher starts all ranks; leave out --external scheduler")
    if sections["scheduling"].speculative == "draft" and run.tensor_parallel > 1:
        raise UsageError("--tensor-parallel: several ranks have no draft model; --speculative ngram needs none")
    cache = sections["cache"]
    if (cache.kv_disk or cache.kv_offload_gb) and run.tensor_parallel > 1:
        raise UsageError("--tensor-parallel: --kv-disk and --kv-offload-gb keep the pages of one rank; leave them out")
    if run.remote_engines and run.tensor_parallel > 1:
        raise UsageError("--tensor-parallel: an engine on another machine has one rank; leave it at 1")
    if run.otlp_endpoint and not run.otlp_endpoint.startswith(("http://", "https://")):
        raise UsageError(f"--otlp-endpoint: {run.otlp_endpoint} is not a URL, as http://localhost:4318 is")
    if not (run.data_parallel or run.remote_engines):
        raise UsageError("--data-parallel 0 wants engines on other machines: give their addresses as --remote-engines")
    if not run.ray:
        for address in run.remote_engines:
            check_address("--remote-engines", address)
    if not cache.enable_prefix_caching and (cache.kv_disk or cache.kv_offload_gb):
        raise UsageError(
            "--kv-disk and --kv-offload-gb keep pages of the prefix cache: leave --no-enable-prefix-caching out"
        )
    check_rules(run.restart)
    _check_names("--restart", [split_rule(rule)[0] for rule in run.restart])
    model_dir = find_model(model, console)
    facts = read_model_facts(model, model_dir, find_tokenizer(model, model_dir, console), model_name(model))
    return Config(**sections, facts=add_draft_facts(facts, model, sections["scheduling"], console))


def _set_range_of_engines(run: RunConfig) -> RunConfig:
    """Returns `run` with a number of engines that is within its range, if it has one."""
    if not run.max_engines:
        return run
    if run.remote_engines or SCHEDULER in run.external:
        raise UsageError("--max-engines: engines at --remote-engines, or started by hand, come and go with you")
    if max(run.min_engines, run.data_parallel) > run.max_engines:
        raise UsageError("--max-engines: there can be no fewer than --min-engines and --data-parallel")
    return msgspec.structs.replace(run, data_parallel=max(run.min_engines, run.data_parallel))


def _place_by_ray(run: RunConfig) -> RunConfig:
    """Returns `run` with all engines on other machines, at ports that the system chooses, where Ray places them."""
    if not run.ray:
        return run
    if run.remote_engines:
        raise UsageError("--ray places all engines: give their number as --data-parallel, and no --remote-engines")
    return msgspec.structs.replace(run, data_parallel=0, remote_engines=(ANY_PORT,) * run.data_parallel)


def choose_devices(model: ModelConfig, num_ranks: int) -> ModelConfig:
    """Returns `model` with the GPUs that `--devices` names, one by one. Raises `UsageError` where they do not suffice.

    `num_ranks` are those of all engines. Whether the GPUs are there is for each of them to see, which has torch.
    """
    devices = tuple(name for text in model.devices for name in text.split(","))
    for name in devices:
        if not re.fullmatch(r"cuda:\d+", name):
            raise UsageError(f"--devices: {name!r} is no GPU: name them as cuda:0,cuda:1")
    if not devices:
        return model
    if model.device == "cpu":
        raise UsageError("--devices names GPUs, and --device cpu wants none; leave one of them out")
    if len(set(devices)) < max(len(devices), num_ranks):
        raise UsageError(
            f"--devices: {num_ranks} ranks (--data-parallel times --tensor-parallel) need as many different GPUs, got "
            f"{', '.join(devices)}"
        )
    return msgspec.structs.replace(model, devices=devices, device="cuda")


def server_commands(
    external: Iterable[str],
    num_workers: Mapping[str, int] = ONE_OF_EACH,
    num_remote: int = 0,
    num_ranks: int = 1,
    is_scalable: bool = False,
) -> list[Command]:
    """Returns how the processes are started, so many of a kind, and of an engine so many ranks.

    Those named in `external` are started by hand. `num_remote` schedulers more are on other machines, fixed
    ones unless `is_scalable`.
    """
    commands: list[Command] = []
    for name, package in PACKAGES.items():
        first = Command(name, python_command(package), name in external)
        num = num_workers.get(name, 1)
        commands += _numbered(first, range(1, num + 1))
        if name == SCHEDULER:
            remote = range(num + 1, num + 1 + num_remote)
            commands += _numbered(Command(name, python_command(PROXY), is_remote=True, is_scalable=is_scalable), remote)
    for rank in range(1, num_ranks):
        name = rank_name(rank)
        first = Command(name, (*python_command("scheduler_proc.rank_process"), "--name", name))
        commands += _numbered(first, range(1, num_workers.get(SCHEDULER, 1) + 1))
    return commands


def _numbered(first: Command, numbers: Iterable[int]) -> list[Command]:
    return [first if number == 1 else command_of_worker(first, number) for number in numbers]


def serve(
    config: Config,
    commands: list[Command],
    console: Console,
    began_s: float,
    early_scheduler: EarlyScheduler | None = None,
) -> int:
    """Opens the socket and the run directory, runs the processes, and returns the exit code when nothing is left."""
    http, wanted_dir = config.http, config.run.run_dir
    run_path = Path(wanted_dir) if wanted_dir else default_path(http.port)
    if config.run.record:
        run = msgspec.structs.replace(config.run, record=str(claim_recording(config.run.record)))
        config = msgspec.structs.replace(config, run=run)
    with SignalPipe() as signals, open_listener(http.host, http.port, run_path) as listener:
        port = listener.getsockname()[1]
        config = msgspec.structs.replace(config, http=msgspec.structs.replace(http, port=port))
        url = base_url(http.host, port, "https" if http.ssl_certfile else "http")
        if any(command.name == FRONTEND and command.is_external for command in commands):
            listener.close()  # a frontend that is started by hand binds the port itself
        run_dir, lock = claim(Path(wanted_dir) if wanted_dir else default_path(port))
        lifeline = make_lifeline(run_dir)
        try:
            _write_files(run_dir, config, url)
            if early_scheduler is not None:  # which knows of no files before it has imported torch
                prefetch(config.model, Path(config.facts.model_dir))
            site = Site(run_dir, listener, signals, find_weight_bytes(config), early_scheduler)
            supervisor = Supervisor(config.run, commands, site, console)
            return supervisor.run(lambda: console.say(ready_text(config, url, time.monotonic() - began_s)))
        finally:
            run_dir.remove()
            os.close(lifeline)
            os.close(lock)


def _write_files(run_dir: RunDir, config: Config, url: str) -> None:
    """Writes the files that the processes read. Raises `BootError`."""
    try:
        run_dir.address_file.write_text(f"{url}\n", encoding="ascii")
        run_dir.write_config(config)
        _write_manifest(config, run_dir)
        if config.run.remote_engines:
            _write_keys(run_dir)
    except OSError as error:
        raise BootError(f"{error.filename or run_dir.path}: {error.strerror}") from None


def _write_keys(run_dir: RunDir) -> None:
    """Makes the keys by which engines on other machines and this one know each other, for this run alone."""
    for file, keys in zip((run_dir.head_keys, run_dir.join_keys), make_keys(), strict=True):
        file.touch(mode=0o600)
        file.write_bytes(msgspec.json.encode(keys))


def _write_manifest(config: Config, run_dir: RunDir) -> None:
    """Writes what this server is beside the frames that its processes keep, if they do."""
    run = config.run
    folders = [run_dir.black_box] * bool(run.black_box_mb) + [Path(run.record)] * bool(run.record)
    if folders:
        manifest = make_manifest(config)
        for folder in folders:
            write_manifest(folder, manifest)


def ready_text(config: Config, url: str, seconds: float) -> str:
    """Returns the summary with a line to paste."""
    body = json.dumps({"prompt": "Once upon a time", "max_tokens": 64})
    headers = ["Content-Type: application/json"]
    if config.http.api_key or config.http.api_key_file:
        headers.append("Authorization: Bearer KEY")
    shown = " ".join(f"-H {shlex.quote(header)}" for header in headers)
    curl = f"curl -N {url}/generate {shown} -d {shlex.quote(body)}"
    listening = f" (listening on {config.http.host})" if config.http.host in ("0.0.0.0", "::") else ""
    return f"""
ready in {seconds:.1f} s
  model    {", ".join(config.facts.served_names)} (context {config.facts.max_model_len} tokens)
  address  {url}{listening}
  try      {curl}
  stop     Ctrl-C
"""


def _check_names(flag: str, names: Iterable[str]) -> None:
    for name in names:
        if name not in PACKAGES:
            nearest = difflib.get_close_matches(name, PACKAGES, n=1)
            hint = f"did you mean {nearest[0]}?" if nearest else f"they are {', '.join(PACKAGES)}"
            raise UsageError(f"{flag}: there is no process {name!r}; {hint}")
