"""The launcher's part of a server of several models: its configuration and its two processes."""

from collections.abc import Callable

from msgspec.structs import replace

from extras.models.catalog import read_entries, shared_flags
from extras.models.config import ModelsConfig
from extras.models.gpu_memory import free_gpu_bytes
from messages.config.server import Config, ModelConfig, ModelFacts
from messages.control.processes import FRONTEND
from messages.errors import UsageError
from runtime.machine import CGROUP, MEMORY_INFO, available_memory_bytes
from supervisor.child import Command
from supervisor.python_process import python_command

HOST = "models"
PART_OF_MEMORY = 0.9
GIB = 2**30

Rule = tuple[Callable[[Config], object], str, str]

RULES: tuple[Rule, ...] = (
    (lambda config: config.model.model, "--model", "give each model a name: --model NAME=PATH"),
    (lambda config: config.model.served_model_name, "--served-model-name", "--models names them"),
    (lambda config: config.model.gguf_file, "--gguf-file", "it is of one model; write it into a file for --models"),
    (lambda config: config.model.lora, "--lora", "adapters are of one model; write them into a file for --models"),
    (
        lambda config: config.images.mmproj not in ("", "none"),
        "--mmproj",
        "it is of one model; write it into a file for --models",
    ),
    (lambda config: config.run.external, "--external", "processes of several models cannot be started by hand"),
    (lambda config: config.run.record, "--record", "a recording is of one model"),
    (lambda config: config.run.frontend_workers > 1, "--frontend-workers", "one process forwards all requests"),
    (lambda config: "batches" in config.extras, "--batch-dir", "batches are for a server of one model"),
    (lambda config: "remote" in config.extras, "--remote-engines, --ray or --max-engines", "engines are of one model"),
)
"""Flags that are refused with `--models`: a test, their name, and the reason."""


def add_facts(config: Config) -> Config:
    """Returns the configuration of the server that forwards: it has no engine, and the models' names. No model is read.

    Raises `UsageError`.
    """
    for is_broken, flag, reason in RULES:
        if is_broken(config):
            raise UsageError(f"--models and {flag}: {reason}")
    section = ModelsConfig.of(config)
    memory_gb = section.models_memory_gb or PART_OF_MEMORY * _available_bytes(config.model) / GIB
    section = replace(section, models_memory_gb=memory_gb, shared_flags=shared_flags(config))
    section = replace(section, entries=read_entries(section))
    names = tuple(entry.name for entry in section.entries)
    facts = ModelFacts(served_names=names, has_chat_template=True)
    run = replace(config.run, data_parallel=0, black_box_mb=0)
    return section.put_into(replace(config, model=ModelConfig(), facts=facts, run=run))


def _available_bytes(model: ModelConfig) -> int:
    return free_gpu_bytes(model) or available_memory_bytes(MEMORY_INFO, CGROUP)


def server_commands(config: Config) -> list[Command]:
    """Returns the commands of the host, which starts the models' servers, and of the router."""
    return [
        Command(HOST, python_command("extras.models.host"), is_scalable=False, imports_torch=True),
        Command(FRONTEND, python_command("extras.models.router"), is_scalable=False),
    ]
