"""The memory that a server reports is the memory that it takes, as the kernel counts it."""

import re
from pathlib import Path
from typing import Any

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
def ring(start_ring: Any) -> RingClient:
    return start_ring(BARD_DIR, "--kv-populate", "background", "--kv-cache-memory-gb", "1")


def list_processes(ring: RingClient) -> ProcessList:
    with AdminClient(ring.run_dir) as client:
        result = client.give(ListProcesses(), TIMEOUT_S)
    assert isinstance(result, ProcessList)
    return result


def measure(server: ProcessList) -> dict[str, int]:
    """Returns the sums of all processes, in bytes."""
    sums: dict[str, int] = dict.fromkeys(("Pss", "Pss_Anon", "Pss_File"), 0)
    for process in server.processes:
        for name, kilobytes in FIELD.findall(Path(f"/proc/{process.pid}/smaps_rollup").read_text()):
            sums[name] += int(kilobytes) * 1024
    return sums


def test_an_idle_server_accounts_for_its_memory(ring: RingClient):
    ring.generate("To be, or not to be", max_tokens=8)
    ring.wait_until_empty()
    file = ring.run_dir.kv_file("scheduler")

    def is_settled() -> bool:
        resident = file.stat().st_blocks * 512
        return resident > 64 * MIB and resident == ring.gauges("scheduler")["kv_cache_resident_bytes"]

    wait_until(is_settled, TIMEOUT_S)
    server, gauges = list_processes(ring), ring.gauges("scheduler")
    measured = measure(server)
    if not measured["Pss_Anon"]:
        pytest.skip("this kernel does not divide PSS into kinds of memory")
    assert is_settled(), "it is idle, so both were read at the same state"
    own, resident = measured["Pss_Anon"] + measured["Pss_File"], gauges["kv_cache_resident_bytes"]
    assert gauges["weights_bytes"] + resident + own == pytest.approx(measured["Pss"], rel=NEAR)
    assert server.memory_bytes == pytest.approx(measured["Pss"], rel=NEAR)
    assert f"{server.memory_bytes / MIB:.0f}M" in memory_text(server)
    assert resident < 512 * MIB < gauges["kv_cache_bytes"] <= 1024 * MIB, "it is far from full"
