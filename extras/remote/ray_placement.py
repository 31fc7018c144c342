"""Ray places the engine of a proxy: an actor on some node runs `launch.py join` there, and nothing else.

No token goes through Ray. The actor belongs to the proxy, which is Ray's driver: Ray ends it when the proxy ends.
"""

import importlib
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from extras.remote.config import RemoteConfig
from messages.config.server import Config
from messages.errors import BootError, MissingExtraError
from supervisor.python_process import ROOT

RETRY_S = 5.0
"""The pause after a joiner has ended."""

JOIN_RETRY_S = 10.0
"""The time limit of a joiner to find the head, which already listens. Another joiner is started afterwards."""

ANSWER_TIMEOUT_S = 5.0
"""The time limit for a cluster to answer; Ray itself tries for minutes, even with a wrong address."""

PLACE_S = 15.0
"""The time after which the operator is shown what Ray waits for; Ray waits for a node with room without a limit."""

LEAVE_S = 5.0
"""The time for a joiner to end its engine and remove its files; then Ray kills it."""

NUM_LAST_LINES = 10


class JoinerActor:
    """Runs on the engine's node. Ray gets it as code, so the node needs this module only for `launch.py join`."""

    def run(self, arguments: list[str], key: bytes, root: str) -> str:
        """Waits for the joiner's end; returns its exit code and its last output."""
        path = os.pathsep.join(filter(None, (root if Path(root).is_dir() else "", os.environ.get("PYTHONPATH", ""))))
        command = [sys.executable, "-P", "-m", "extras.remote.join", *arguments]
        # The key goes through a pipe, because a file would stay there when the node's processes are killed.
        done = subprocess.run(
            [*command, "--key-file", "/dev/stdin", "--parent-pid", str(os.getpid())],
            input=key,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": path},
            check=False,
        )
        lines = done.stdout.decode(errors="replace").splitlines()[-NUM_LAST_LINES:]
        return "\n".join([f"the joiner exited with code {done.returncode}", *lines])


class RayPlacement:
    """Makes Ray start a joiner for the head's `port` whenever there is none.

    Raises `BootError` if there is no Ray, or no cluster that answers.
    """

    def __init__(self, config: Config, port: int, key_file: Path):
        try:
            self._ray: Any = importlib.import_module("ray")
        except ImportError as error:
            raise MissingExtraError("--ray", "ray", error) from None
        address = RemoteConfig.of(config).ray
        try:
            _find_out_whether_it_answers(address)
            self._ray.init(address=address, namespace="sluice", log_to_driver=False, configure_logging=False)
        except (OSError, ValueError, RuntimeError) as error:
            raise BootError(
                f"--ray: there is no cluster at {address}: `ray start --head` makes one ({error})"
            ) from None
        self._ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
        host = self._ray.util.get_node_ip_address()
        threads = config.model.cpu_threads
        self._arguments = f"tcp://{host}:{port} --cpu-threads {threads} --retry-s {JOIN_RETRY_S:g} --once".split()
        self._key = key_file.read_bytes()
        has_gpus = self._ray.cluster_resources().get("GPU", 0) > 0
        wants_gpu = config.model.device == "cuda" or (config.model.device == "auto" and has_gpus)
        self._options: dict[str, Any] = {
            "num_cpus": threads or 1,
            "num_gpus": int(wants_gpu),
            "max_restarts": 0,
            "scheduling_strategy": "SPREAD",
        }
        self._is_notified = False
        """True if the operator has been shown what this actor waits for."""
        self._actor: Any = None
        self._result: Any = None
        self._due_s = 0.0

    def look(self, has_joined: bool) -> str:
        """Starts an actor if there is none.

        Returns how the previous actor ended, what this one waits for, or "". `has_joined`: an engine is connected, and
        so the actor runs.
        """
        if self._result is None:
            if time.monotonic() >= self._due_s:
                self._actor = self._ray.remote(**self._options)(JoinerActor).remote()
                self._result = self._actor.run.remote(self._arguments, self._key, str(ROOT))
                self._due_s, self._is_notified = time.monotonic() + PLACE_S, False
            return ""
        ended, _ = self._ray.wait([self._result], timeout=0)
        if not ended:
            if has_joined or self._is_notified or time.monotonic() < self._due_s:
                return ""
            self._is_notified = True
            return self._describe_lack()
        try:
            end = self._ray.get(self._result)
        except self._ray.exceptions.RayError as error:
            end = f"Ray has lost its actor: {error}".splitlines()[0]
        self._actor = self._result = None
        self._due_s = time.monotonic() + RETRY_S
        return end

    def _describe_lack(self) -> str:
        asked = {"CPU": self._options["num_cpus"], "GPU": self._options["num_gpus"]}
        free = self._ray.available_resources()
        requested, found = (
            " and ".join(f"{found.get(kind, 0):g} {kind}s" for kind in asked) for found in (asked, free)
        )
        return (
            f"the engine waits for Ray: it asks for {requested} on one node, and free in all the cluster are {found}; "
            "add a node, lower --data-parallel or --cpu-threads, or see what its actor waits for with `ray status`"
        )

    def close(self, has_joined: bool) -> None:
        """Ends the actor and its joiner. A joiner that is connected gets some time to leave by itself."""
        if has_joined and self._result is not None:
            self._ray.wait([self._result], timeout=LEAVE_S)
        self._ray.shutdown()


def _find_out_whether_it_answers(address: str) -> None:
    """Raises `OSError` if no process listens at HOST:PORT. Other forms of `address` are left to Ray."""
    found = re.fullmatch(r"(?:ray://)?(.+):(\d{1,5})", address)
    if found is not None:
        socket.create_connection((found[1].strip("[]"), int(found[2])), ANSWER_TIMEOUT_S).close()
