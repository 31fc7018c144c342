"""From the command line to the exit code: configuration, model, socket, run directory, and then the supervisor."""

import difflib
import json
import os
import re
import shlex
import socket
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from messages.config.images import HOST
from messages.config.server import CHAT_SAMPLING, Config, ExtraConfig, ModelFacts
from messages.control.processes import ENCODER, FRONTEND, RING
from messages.engine_names import SCHEDULER, rank_name
from messages.errors import BootError, UsageError
from messages.program import PROGRAM
from runtime.extras import installed_extras, load_object, load_parts, load_sections
from runtime.lifeline import make_lifeline
from runtime.prefetch import prefetch
from runtime.run_dir import RunDir, claim, default_path
from supervisor.child import Command, number_commands
from supervisor.console import Console
from supervisor.early_scheduler import EarlyScheduler
from supervisor.flags import CORE_SECTIONS, parse_flags
from supervisor.lifecycle import RunFailedError
from supervisor.listener import base_url, listen_privately, open_listener
from supervisor.manifest import claim_recording, make_manifest, write_manifest
from supervisor.model.adapters import add_adapters
from supervisor.model.draft import add_draft_facts
from supervisor.model.facts import read_model_facts
from supervisor.model.gguf.model_directory import move_temporary
from supervisor.model.lookup import check_is_utf8, find_model, find_tokenizer, model_name
from supervisor.model.vision import add_vision_facts
from supervisor.model.weight_bytes import find_weight_bytes
from supervisor.process_group import Site
from supervisor.python_process import python_command
from supervisor.restarts import check_rules, split_rule
from supervisor.signals import SignalPipe
from supervisor.supervisor import Supervisor

TOKENIZER = "tokenizer"

PACKAGES = {FRONTEND: "frontend"} | {kind: f"{kind}_proc" for kind in (RING[0], ENCODER, *RING[1:])}
"""By process, in the order of their starts."""

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
        flag = ""
        for argument in arguments:
            flag = argument.partition("=")[0] if argument.startswith("--") else flag
            check_is_utf8(flag, argument.removeprefix(f"{flag}="))
        for extra in installed_extras():
            arguments = load_object(extra.arguments)(arguments) if extra.arguments else arguments
        sections: dict[str, Any] = parse_flags(arguments)
        console.is_json = sections["run"].log_format == "json"
        while True:
            config = build_config(sections, console)
            try:
                return serve(config, server_commands(config), console, began_s, early_scheduler)
            except RunFailedError as error:  # once: then the length is as if it were given
                size = error.fitting_len
                console.show(f"the context is shortened to {size} tokens (--max-model-len {size}): {error}", "warning")
                sections["model"] = msgspec.structs.replace(sections["model"], max_model_len=size)
    except (UsageError, BootError) as error:
        console.show(f"{PROGRAM}: {error}", "error")
        return USAGE_EXIT_CODE if isinstance(error, UsageError) else FAILURE_EXIT_CODE
    except KeyboardInterrupt:
        return INTERRUPTED_EXIT_CODE
    finally:
        if early_scheduler is not None:
            early_scheduler.end()
        console.close()


Rule = tuple[Callable[[Config], object], str]

RULES: tuple[Rule, ...] = (
    (
        lambda config: FRONTEND in config.run.external and config.run.frontend_workers > 1,
        "--frontend-workers: a frontend that is started by hand binds the port alone; leave it at 1",
    ),
    (
        lambda config: SCHEDULER in config.run.external and config.run.num_ranks > 1,
        "--tensor-parallel, --pipeline-parallel: the launcher starts all ranks; leave out --external scheduler",
    ),
    (
        lambda config: config.scheduling.speculative in ("draft", "mtp") and config.run.tensor_parallel > 1,
        "--tensor-parallel: several ranks have no draft model and no MTP head; --speculative ngram needs none",
    ),
    (
        lambda config: config.cache.has_tiers and config.run.num_ranks > 1,
        "--tensor-parallel, --pipeline-parallel: --kv-disk and --kv-offload-gb keep the pages of one rank; leave them "
        "out",
    ),
    (
        lambda config: config.cache.has_tiers and not config.cache.enable_prefix_caching,
        "--kv-disk and --kv-offload-gb keep pages of the prefix cache: leave --no-enable-prefix-caching out",
    ),
    (
        lambda config: config.model.num_lora_slots and config.run.num_ranks > 1,
        "--tensor-parallel, --pipeline-parallel: --lora and --max-loras are for one rank; leave them out, or use "
        "--data-parallel",
    ),
    (
        lambda config: re.fullmatch(f"{HOST}(, ?{HOST})*", config.images.image_urls) is None,
        "--image-urls must be none, public, or a list of hosts such as images.example,10.0.0.5:8080",
    ),
    (
        lambda config: not config.num_engines,
        "--data-parallel 0 wants engines on other machines, and the flags name none",
    ),
)
"""Combinations of flags that are refused, with the error. Rules about an extra's flags are in its `check`."""


def build_config(sections: dict[str, Any], console: Console | None = None) -> Config:
    """Returns the whole configuration, with the facts about the model; this may fetch the model from the hub."""
    config = check_flags(sections)
    for server in load_parts(config, "server"):
        return with_room_for_images(server.add_facts(config))
    model_dir = find_model(config.model, console)
    tokenizer_dir = find_tokenizer(config.model, model_dir, console)
    facts = read_model_facts(config.model, model_dir, tokenizer_dir, model_name(config.model))
    facts = add_vision_facts(facts, config.model, config.images, console)
    facts = add_draft_facts(facts, config.model, config.scheduling, console)
    cache = config.cache
    if facts.pooling is not None and facts.pooling.is_encoder:  # it keeps nothing of a prompt
        cache = msgspec.structs.replace(cache, enable_prefix_caching=False, kv_disk="", kv_offload_gb=0.0)
    config = msgspec.structs.replace(config, facts=facts, cache=cache)
    return config if facts.vision is None else with_room_for_images(config)


def with_room_for_images(config: Config) -> Config:
    """Returns the configuration of a server whose bodies may be as large as the largest image in base64."""
    room_mb = max(config.http.max_body_mb, config.images.max_image_mb * 4 / 3 + 1)
    return msgspec.structs.replace(config, http=msgspec.structs.replace(config.http, max_body_mb=room_mb))


def check_flags(sections: dict[str, Any]) -> Config:
    """Returns the configuration without facts. Raises `UsageError` for flags that do not go together."""
    config = Config(**{name: sections[name] for name in CORE_SECTIONS}, facts=ModelFacts())
    of_extras: list[ExtraConfig] = [sections[name] for name in load_sections()]
    for section in of_extras:
        if section != type(section)():
            config = section.put_into(config)
        config = section.check(config)
    for is_broken, error in RULES:
        if is_broken(config):
            raise UsageError(error)
    _check_names("--external", config.run.external)
    check_rules(config.run.restart)
    _check_names("--restart", [split_rule(rule)[0] for rule in config.run.restart])
    check_device(config)
    return config


def check_device(config: Config) -> None:
    """Raises `UsageError` for a `--device` that does not exist, or for fewer GPUs than ranks."""
    model, num_ranks = config.model, config.max_local_engines * config.run.num_ranks
    if not re.fullmatch(r"auto|cpu|cuda(:\d+(,cuda:\d+)*)?", model.device):
        raise UsageError(f"--device: {model.device!r} is not valid: expected auto, cpu, cuda, or GPUs as cuda:0,cuda:1")
    if model.devices and len(set(model.devices)) < max(len(model.devices), num_ranks):
        raise UsageError(
            f"--device: {num_ranks} ranks (--data-parallel times --tensor-parallel) need as many different GPUs, got "
            f"{model.device}"
        )


def server_commands(config: Config) -> list[Command]:
    """Returns the commands of all processes. Those named by `--external` are started by hand."""
    for server in load_parts(config, "server"):
        return server.server_commands(config)
    run = config.run
    num_workers = {FRONTEND: run.frontend_workers, TOKENIZER: run.tokenizer_workers, SCHEDULER: run.data_parallel}
    num_workers[ENCODER] = 0 if config.facts.vision is None else config.images.encoder_workers
    commands: list[Command] = []
    for name, package in PACKAGES.items():
        is_scheduler = name == SCHEDULER
        first = Command(
            name,
            python_command(package),
            name in run.external,
            is_scalable=not (is_scheduler and config.num_remote_stages),
            imports_torch=is_scheduler,
        )
        commands += number_commands(first, range(1, num_workers.get(name, 1) + 1))
        if is_scheduler:
            commands += (command for part in load_parts(config, "launcher") for command in part.engine_commands(config))
    for rank in range(1 + config.num_remote_stages, run.num_ranks):
        name = rank_name(rank)
        first = Command(name, (*python_command("scheduler_proc.rank_process"), "--name", name))
        commands += number_commands(first, range(1, run.data_parallel + 1))
    return commands


def serve(
    config: Config,
    commands: list[Command],
    console: Console,
    began_s: float,
    early_scheduler: EarlyScheduler | None = None,
) -> int:
    """Opens the socket and the run directory, runs the processes, and returns the exit code when nothing is left."""
    http, run_dir_flag = config.http, config.run.run_dir
    run_path = Path(run_dir_flag) if run_dir_flag else default_path(http.port)
    if config.run.record:
        run = msgspec.structs.replace(config.run, record=str(claim_recording(config.run.record)))
        config = msgspec.structs.replace(config, run=run)
    opened = socket.socket(socket.AF_UNIX) if http.is_private else open_listener(http.host, http.port, run_path)
    with SignalPipe() as signals, opened as listener:
        port = 0 if http.is_private else listener.getsockname()[1]
        config = msgspec.structs.replace(config, http=msgspec.structs.replace(http, port=port))
        url = base_url(http.host, port, "https" if http.ssl_certfile else "http")
        if any(command.name == FRONTEND and command.is_external for command in commands):
            listener.close()  # a frontend that is started by hand binds the port itself
        run_dir, lock = claim(Path(run_dir_flag) if run_dir_flag else default_path(port))
        lifeline = make_lifeline(run_dir)
        try:
            if http.is_private:
                url = listen_privately(listener, run_dir.http_socket)
            facts = add_adapters(move_temporary(config.facts, run_dir.path), config.model, run_dir.path)
            config = msgspec.structs.replace(config, facts=facts)
            _write_files(run_dir, config, url)
            if early_scheduler is not None:  # which knows of no files before it has imported torch
                prefetch(config.model, Path(config.facts.model_dir))
            site = Site(run_dir, listener, signals, find_weight_bytes(config), early_scheduler)
            supervisor = Supervisor(config.run, commands, site, console)
            return supervisor.run(lambda: console.show(ready_text(config, url, time.monotonic() - began_s)))
        finally:
            run_dir.remove()
            os.close(lifeline)
            os.close(lock)


def _write_files(run_dir: RunDir, config: Config, url: str) -> None:
    """Writes the files that the processes read. Raises `BootError`."""
    try:
        run_dir.address_file.write_text(f"{url}\n", encoding="utf-8")
        run_dir.write_config(config)
        _write_manifest(config, run_dir)
        for part in load_parts(config, "launcher"):
            part.write_files(config, run_dir)
    except OSError as error:
        raise BootError(f"{error.filename or run_dir.path}: {error.strerror}") from None


def _write_manifest(config: Config, run_dir: RunDir) -> None:
    """Writes the manifest of this server next to the frames that its processes keep, if any."""
    run = config.run
    folders = [run_dir.black_box] * bool(run.black_box_mb) + [Path(run.record)] * bool(run.record)
    if folders:
        manifest = make_manifest(config)
        for folder in folders:
            write_manifest(folder, manifest)


def ready_text(config: Config, url: str, seconds: float) -> str:
    """Returns the summary with a line to paste."""
    name = {"model": config.facts.served_names[0]} if len(config.facts.served_names) > 1 else {}
    path, body = "generate", json.dumps({"prompt": "Once upon a time", "max_tokens": 64})
    if config.facts.has_chat_template:
        messages = [{"role": "user", "content": "Name the capital of France."}]
        path, body = "v1/chat/completions", json.dumps({**name, "messages": messages, "temperature": 0})
    pooling = config.facts.pooling
    if pooling is not None and not pooling.generates:
        path, body = "classify" if pooling.kind == "classify" else "v1/embeddings", json.dumps({"input": "A camelid."})
    headers = ["Content-Type: application/json"]
    if config.http.api_key or any(extra.keys and extra.name in config.extras for extra in installed_extras()):
        headers.append("Authorization: Bearer KEY")
    shown = " ".join(f"-H {shlex.quote(header)}" for header in headers)
    curl = f"curl -N {url}/{path} {shown} -d {shlex.quote(body)}"
    listening = f" (listening on {config.http.host})" if config.http.host in ("0.0.0.0", "::") else ""
    context = f" (context {config.facts.max_model_len} tokens)" * bool(config.facts.max_model_len)
    return f"""
ready in {seconds:.1f} s
  model    {", ".join(config.facts.served_names)}{context}
  address  {url}{listening}{_sampling_text(config)}
  try      {curl}
  stop     Ctrl-C
"""


def _sampling_text(config: Config) -> str:
    """Returns the line about the defaults of sampling, for a model that generates."""
    facts = config.facts
    if not facts.max_model_len or (facts.pooling is not None and not facts.pooling.generates):
        return ""
    used = facts.sampling_defaults or CHAT_SAMPLING
    values = ", ".join(f"{name} {value:g}" for name, value in used.items())
    where = facts.sampling_source or "in the chat page and `run`; temperature 1 in the APIs"
    return f"\n  sampling {values} ({where})"


def _check_names(flag: str, names: Iterable[str]) -> None:
    for name in names:
        if name not in PACKAGES:
            nearest = difflib.get_close_matches(name, PACKAGES, n=1)
            hint = f"did you mean {nearest[0]}?" if nearest else f"they are {', '.join(PACKAGES)}"
            raise UsageError(f"{flag}: there is no process {name!r}; {hint}")
