"""The launcher's part: processes that stand for engines on other machines, their keys, and the autoscaler."""

import msgspec

from extras.remote.autoscaler import Autoscaler
from extras.remote.config import RemoteConfig
from extras.remote.join_keys import make_keys
from messages.config.server import Config
from messages.engine_names import SCHEDULER
from runtime.run_dir import RunDir
from supervisor.child import Command, number_commands
from supervisor.python_process import python_command

PROXY = "extras.remote.proxy"


def engine_commands(config: Config) -> list[Command]:
    """Returns the commands of the proxies: a fixed number, unless Ray can place more."""
    remote = RemoteConfig.of(config)
    first = Command(SCHEDULER, python_command(PROXY), is_remote=True, is_scalable=bool(remote.ray))
    num_before = config.run.data_parallel
    return number_commands(first, range(num_before + 1, num_before + 1 + len(remote.remote_engines)))


def write_files(config: Config, run_dir: RunDir) -> None:
    """Makes the keys with which engines on other machines and this one authenticate each other, for this run alone."""
    if RemoteConfig.of(config).remote_engines:
        for file, keys in zip((run_dir.head_keys, run_dir.join_keys), make_keys(), strict=True):
            file.touch(mode=0o600)
            file.write_bytes(msgspec.json.encode(keys))


make_part = Autoscaler
