"""The launcher's part: processes that stand for engines on other machines, their keys, and the autoscaler."""

import msgspec

from extras.remote.autoscaler import Autoscaler
from extras.remote.config import RemoteConfig
from extras.remote.join_keys import make_keys
from messages.config.server import Config
from messages.engine_names import SCHEDULER, rank_name
from runtime.run_dir import RunDir
from supervisor.child import Command, number_commands
from supervisor.python_process import python_command

PROXY = "extras.remote.proxy"


def engine_commands(config: Config) -> list[Command]:
    """Returns the commands of the proxies of engines, a fixed number unless Ray can place more, and of stages."""
    remote = RemoteConfig.of(config)
    first = Command(SCHEDULER, python_command(PROXY), is_remote=True, is_scalable=bool(remote.ray))
    num_before = config.run.data_parallel
    commands = number_commands(first, range(num_before + 1, num_before + 1 + len(remote.remote_engines)))
    for rank in range(1, 1 + config.num_remote_stages):
        name = rank_name(rank)
        first = Command(name, (*python_command(PROXY), "--name", name), is_remote=True, is_scalable=False)
        commands += number_commands(first, range(1, num_before + 1))
    return commands


def write_files(config: Config, run_dir: RunDir) -> None:
    """Makes the keys with which engines on other machines and this one authenticate each other, for this run alone."""
    remote = RemoteConfig.of(config)
    if remote.remote_engines or remote.remote_stages:
        for file, keys in zip((run_dir.head_keys, run_dir.join_keys), make_keys(), strict=True):
            file.touch(mode=0o600)
            file.write_bytes(msgspec.json.encode(keys))


make_part = Autoscaler
