"""Engines that Ray places on a cluster of raylets on this machine: one is killed, and none is left at the end."""

import asyncio
import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from benchmarks.server_process import ServerProcess, started_server
from messages.control.processes import worker_number
from tests.frontend.frontend_run import wait_until
from tests.ring.client import ADMIN_KEY, RingClient
from tests.ring.conftest import CHEAP, READY_TIMEOUT_S, RESTART_FLAGS
from tests.ring.test_autoscaling import RANGE, wait_for_engines
from tests.ring.test_engines import SERVING, count_streams
from tests.ring.test_rolling_restart import COMMAND_TIMEOUT_S, Load, make_requests, processes, replace

pytest.importorskip("ray", reason="needs the extra ray")

# Warnings of Ray itself are not our concern.
pytestmark = [pytest.mark.ring, pytest.mark.filterwarnings("ignore")]

ENGINES = ("scheduler", "scheduler-2")


class Nodes:
    """A cluster whose processes, and the servers started meanwhile, have their files in `place`."""

    def __init__(self, place: Path, num_cpus: int):
        from ray.cluster_utils import Cluster  # pyright: ignore[reportMissingImports]

        self.place = place
        self._cluster: Any = Cluster(
            initialize_head=True, head_node_args={"num_cpus": num_cpus, "include_dashboard": False}
        )
        self.add, self.close = self._cluster.add_node, self._cluster.shutdown

    def flags(self, checkpoint: Path) -> list[str]:
        ray = ["--ray", self._cluster.address, "--cpu-threads", "1", *CHEAP]
        return ["--model", str(checkpoint), *RESTART_FLAGS, "--admin-key", ADMIN_KEY, *ray]

    def processes(self, node: Any) -> list[psutil.Process]:
        """Returns the node's raylet and all processes that it has started."""
        raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
        return [raylet, *raylet.children(recursive=True)]

    def engine_on(self, node: Any) -> str:
        """Returns the name of the engine on the node."""
        (command,) = (line for line in map(_command, self.processes(node)) if "scheduler_proc" in line)
        return command[command.index("--name") + 1]

    def kill(self, node: Any) -> None:
        """Kills everything on the node at once."""
        processes = self.processes(node)
        assert {"extras.remote.join", "scheduler_proc"} <= {part for one in processes for part in _command(one)}
        for process in processes:
            process.kill()
        self._cluster.remove_node(node, False)

    def actors(self) -> list[str]:
        """Returns the node of each actor that is not dead."""
        table = self._cluster.global_state.actor_table(None).values()
        return [actor["Address"]["NodeID"] for actor in table if actor["State"] != "DEAD"]

    @property
    def head(self) -> Any:
        return self._cluster.head_node

    @property
    def head_id(self) -> str:
        return self.head.node_id

    def left(self) -> list[str]:
        """Returns the remains of servers: processes (by their environment, without Ray's own), files and actors."""
        commands = [_command(process) for process in psutil.process_iter() if str(self.place) in _environment(process)]
        found = [" ".join(command) for command in commands if not any("ray/" in part for part in command)]
        files = [str(path) for path in self.place.iterdir() if path.name != "ray"]
        return [*found, *files, *self.actors()]


def _command(process: psutil.Process) -> list[str]:
    with suppress(psutil.Error):
        return process.cmdline()
    return []


def _environment(process: psutil.Process) -> set[str]:
    with suppress(psutil.Error):
        return set(process.environ().values())
    return set()


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="nodes-", dir="/tmp") as name:
        for variable in ("XDG_RUNTIME_DIR", "TMPDIR"):
            monkeypatch.setenv(variable, name)
        yield Path(name)


@pytest.fixture
def nodes(place: Path, request: pytest.FixtureRequest) -> Iterator[Nodes]:
    nodes = Nodes(place, num_cpus=request.param)
    yield nodes
    nodes.close()


def interrupt(server: ServerProcess, nodes: Nodes) -> None:
    """Ends the server as Ctrl-C does, and asserts that nothing is left."""
    os.kill(server.pid, signal.SIGINT)
    has_ended = os.WEXITED | os.WNOWAIT | os.WNOHANG
    wait_until(lambda: os.waitid(os.P_PID, server.pid, has_ended) is not None, COMMAND_TIMEOUT_S)
    assert not server.run_dir.path.exists()
    assert server.stop() == 0, server.log_text()
    with suppress(AssertionError):
        wait_until(lambda: not nodes.left(), COMMAND_TIMEOUT_S)
    assert nodes.left() == []


@pytest.mark.parametrize("nodes", [2], indirect=True)
def test_streams_of_a_node_that_is_killed_continue_and_its_engine_is_placed_elsewhere(
    tiny_checkpoint: Path, nodes: Nodes
):
    node = nodes.add(num_cpus=2)
    with started_server([*nodes.flags(tiny_checkpoint), "--data-parallel", "2"], READY_TIMEOUT_S) as (server, target):
        ring = RingClient(f"http://{target.host}:{target.port}", server.run_dir)
        wait_until(lambda: all(ring.status(name)["state"] in SERVING for name in ENGINES), COMMAND_TIMEOUT_S)
        assert set(nodes.actors()) == {nodes.head_id, node.node_id}
        victim = nodes.engine_on(node)
        requests = make_requests(6, max_tokens=190)
        load = Load(ring, requests, ring.generate_all(requests))

        async def act(client: httpx.AsyncClient) -> None:
            await load.wait_for_replies(6)
            async with asyncio.timeout(2 * COMMAND_TIMEOUT_S):
                while await count_streams(client, worker_number(victim)) < 2:
                    await asyncio.sleep(0.02)
                await asyncio.to_thread(nodes.kill, node)
                while not load.num_continued or not await asyncio.to_thread(serves_again, ring, victim):
                    await asyncio.sleep(0.1)
            assert nodes.actors() == [nodes.head_id] * 2
            await load.wait_for_replies(6)
            await replace(client, "scheduler")  # whose joiner ends, and Ray is asked for the next one
            await load.wait_for_replies(6)

        asyncio.run(load.run_during(act))
        interrupt(server, nodes)


@pytest.mark.parametrize("nodes", [2], indirect=True)
def test_stages_are_placed_and_placed_again(tiny_checkpoint: Path, nodes: Nodes):
    """Two actors have a stage each, and the head the third."""
    with started_server([*nodes.flags(tiny_checkpoint), "--pipeline-parallel", "3"], READY_TIMEOUT_S) as (
        server,
        target,
    ):
        ring = RingClient(f"http://{target.host}:{target.port}", server.run_dir)
        assert nodes.actors() == [nodes.head_id] * 2
        requests = make_requests(3, max_tokens=60)
        expected = [(one.text, one.token_ids) for one in ring.generate_all(requests)]
        joiners = [process for process in nodes.processes(nodes.head) if "extras.remote.join" in _command(process)]
        assert len(joiners) == 2
        joiners[0].kill()
        assert [(one.text, one.token_ids) for one in ring.generate_all(requests)] == expected
        ring.wait_for_restart("scheduler", 1)
        interrupt(server, nodes)


def serves_again(ring: RingClient, engine: str) -> bool:
    status = ring.status(engine)
    return status["num_restarts"] > 0 and status["state"] in SERVING


@pytest.mark.parametrize("nodes", [1], indirect=True)
def test_an_engine_comes_under_load_when_a_node_has_room_and_leaves_it_when_all_is_quiet(
    tiny_checkpoint: Path, nodes: Nodes
):
    flags = [*nodes.flags(tiny_checkpoint), *RANGE, "--max-num-seqs", "4"]
    with started_server(flags, READY_TIMEOUT_S) as (server, target):
        ring = RingClient(f"http://{target.host}:{target.port}", server.run_dir)
        requests = make_requests(16, max_tokens=190)
        expected = ring.generate_all(requests)
        many, few = Load(ring, requests, expected), Load(ring, requests[:2], expected[:2])
        node: Any = None

        async def until_two(client: httpx.AsyncClient) -> None:
            nonlocal node
            lack = "the engine waits for Ray: it asks for 1 CPUs and 0 GPUs on one node, and free in all the cluster"
            async with asyncio.timeout(COMMAND_TIMEOUT_S):
                while not any(lack in line for _, line in list(server.log)):
                    await asyncio.sleep(0.1)
            waiting = (await processes(client))["scheduler-2"]
            assert (waiting["state"], waiting["phase"]) == ("starting", "waiting for Ray")
            node = nodes.add(num_cpus=1)  # in this thread, because it sets signal handlers
            await wait_for_engines(client, 2)
            assert nodes.engine_on(node) == "scheduler-2"
            await many.wait_for_replies(16)

        async def until_one(client: httpx.AsyncClient) -> None:
            await wait_for_engines(client, 1)
            await few.wait_for_replies(2)

        asyncio.run(many.run_during(until_two))
        asyncio.run(few.run_during(until_one))
        wait_until(lambda: nodes.actors() == [nodes.head_id], COMMAND_TIMEOUT_S)
        wait_until(
            lambda: not any("scheduler_proc" in _command(one) for one in nodes.processes(node)), COMMAND_TIMEOUT_S
        )
        interrupt(server, nodes)
