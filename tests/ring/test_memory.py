"""The memory that a server reports is the memory that it takes, as the kernel counts it."""

import re
from pathlib import Path
from typing import Any

import psutil
import pytest

from messages.control.admin import ListProcesses, ProcessList
from supervisor.cli.show import memory_text
from supervisor.client.admin_client import AdminClient
from tests.frontend.frontend_run import wait_until
from tests.ring.client import BARD_DIR, TIMEOUT_S, RingClient

pytestmark = pytest.mark.ring

NEAR = 0.03
MIB = 2**20
FIELD = re.compile(r"^(Pss|Pss_Anon|Pss_File): +(\d+) kB", re.MULTILINE)


@pytest.fixture(scope="module")
def ring(launch_ring: Any) -> RingClient:
    return launch_ring(BARD_DIR, "--kv-populate", "background", "--kv-cache-memory-gb", "1")


def list_processes(ring: RingClient) -> ProcessList:
    with AdminClient(ring.run_dir) as client:
        result = client.give(ListProcesses(), TIMEOUT_S)
    assert isinstance(result, ProcessList)
    return result


def measure(server: ProcessList) -> dict[str, int]:
    """Returns the sums of the launcher and all its descendants, in bytes."""
    sums: dict[str, int] = dict.fromkeys(("Pss", "Pss_Anon", "Pss_File"), 0)
    launcher = psutil.Process(server.processes[0].pid)
    for process in (launcher, *launcher.children(recursive=True)):
        for name, kilobytes in FIELD.findall(Path(f"/proc/{process.pid}/smaps_rollup").read_text()):
            sums[name] += int(kilobytes) * 1024
    return sums


def measure_at_rest(ring: RingClient) -> tuple[ProcessList, dict[str, int], dict[str, Any]]:
    """Reads everything while the cache's memory stays the same: a thread gets it whenever the machine has time."""
    file = ring.run_dir.kv_file("scheduler")
    readings: list[tuple[ProcessList, dict[str, int], dict[str, Any]]] = []

    def has_read() -> bool:
        before = file.stat().st_blocks * 512
        server = list_processes(ring)
        readings[:] = [(server, measure(server), ring.gauges("scheduler"))]
        return 64 * MIB < before == readings[0][2]["kv_cache_resident_bytes"] == file.stat().st_blocks * 512

    wait_until(has_read, TIMEOUT_S)
    return readings[0]


def test_an_idle_server_accounts_for_its_memory(ring: RingClient):
    ring.generate("To be, or not to be", max_tokens=8)
    ring.wait_until_empty()
    server, measured, gauges = measure_at_rest(ring)
    if not measured["Pss_Anon"]:
        pytest.skip("this kernel does not divide PSS into kinds of memory")
    own, resident = measured["Pss_Anon"] + measured["Pss_File"], gauges["kv_cache_resident_bytes"]
    assert gauges["weights_bytes"] + resident + own == pytest.approx(measured["Pss"], rel=NEAR)
    assert server.memory_bytes == pytest.approx(measured["Pss"], rel=NEAR)
    assert f"{server.memory_bytes / MIB:.0f}M" in memory_text(server)
    assert resident < 768 * MIB < gauges["kv_cache_bytes"] <= 1024 * MIB, "it is far from full"
