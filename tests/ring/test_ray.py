"""Engines that Ray places on two nodes (two raylets of this machine): the loss of a node costs no stream anything."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.server_process import started_server
from runtime.run_dir import default_path
from tests.frontend.frontend_run import wait_until
from tests.ring.client import ADMIN_KEY, RingClient
from tests.ring.conftest import READY_TIMEOUT_S, RESTART_FLAGS
from tests.ring.test_engines import SERVING
from tests.ring.test_rolling_restart import COMMAND_TIMEOUT_S, Load, make_requests, replace

pytest.importorskip("ray", reason="needs sluice[ray]")

# What Ray itself warns of is not ours to mend.
pytestmark = [pytest.mark.ring, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def cluster() -> Iterator[Any]:
    from ray.cluster_utils import Cluster  # pyright: ignore[reportMissingImports]

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    yield cluster
    cluster.shutdown()


def test_streams_of_a_node_that_vanishes_go_on_and_it_is_replaced(tiny_checkpoint: Path, cluster: Any):
    node = cluster.add_node(num_cpus=2)
    before = set(default_path("").parent.glob(default_path("join-*").name))
    ray = ["--ray", "--ray-address", cluster.address, "--data-parallel", "2"]
    flags = ["--model", str(tiny_checkpoint), "--cpu-threads", "1", *RESTART_FLAGS, "--admin-key", ADMIN_KEY]
    with started_server([*flags, *ray], READY_TIMEOUT_S) as (server, target):
        ring = RingClient(f"http://{target.host}:{target.port}", server.run_dir)
        engines = ("scheduler", "scheduler-2")
        wait_until(lambda: all(ring.status(name)["state"] in SERVING for name in engines), COMMAND_TIMEOUT_S)
        requests = make_requests(6, max_tokens=190)
        load = Load(ring, requests, ring.generate_all(requests))

        async def act(client: httpx.AsyncClient) -> None:
            await load.wait_for_replies(6)
            await asyncio.to_thread(cluster.remove_node, node, False)
            async with asyncio.timeout(2 * COMMAND_TIMEOUT_S):
                while not load.num_continued or not all(await asyncio.to_thread(serves_again, ring)):
                    await asyncio.sleep(0.1)
            await load.wait_for_replies(6)
            await replace(client, "scheduler")  # whose joiner ends, and Ray is asked for the next one
            await load.wait_for_replies(6)

        asyncio.run(load.run_during(act))
        assert server.stop() == 0, server.log_text()
    left = set(default_path("").parent.glob(default_path("join-*").name)) - before
    assert not [path for path in left if (path / "lifeline").exists()], "joiners have left with the head"


def serves_again(ring: RingClient) -> list[bool]:
    """Of both engines, whether they serve, where one has been replaced."""
    processes = [ring.status(name) for name in ("scheduler", "scheduler-2")]
    return [sum(one["num_restarts"] for one in processes) > 0, *(one["state"] in SERVING for one in processes)]
