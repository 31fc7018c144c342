"""A real Prometheus scrapes a real server, and answers each query of the dashboard: with SLUICE_TEST_PROMETHEUS=1."""

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.deploy.test_queries import ALERTS, alerts, dashboard_queries
from tests.free_port import find_free_port
from tests.frontend.frontend_run import wait_until
from tests.ring.client import TIMEOUT_S, RingClient

pytestmark = pytest.mark.ring

PROMETHEUS = shutil.which("prometheus") if os.environ.get("SLUICE_TEST_PROMETHEUS") else None

VARIABLES = {"$__rate_interval": "1m", "$job": "sluice", "$model": ".*"}
COMPARISON = re.compile(r" (?:==|>=?) [\d.]+$")
"""The part of an alert that must have data, or it could never fire."""

NO_DATA = ("sluice_process_state", "sluice_frontends_missing", 'status="5xx"')
"""Queries with one of these return nothing: all processes are healthy, there is one frontend, no response failed."""


class Prometheus:
    def __init__(self, address: str):
        self._url = f"http://{address}/api/v1"

    def ask(self, path: str, **parameters: str) -> Any:
        reply = httpx.get(f"{self._url}/{path}", params=parameters, timeout=TIMEOUT_S).json()
        assert reply["status"] == "success", reply
        return reply["data"]

    def wait_for(self, query: str) -> None:
        deadline_s = time.monotonic() + TIMEOUT_S
        while True:
            try:
                if self.ask("query", query=query)["result"]:
                    return
            except (httpx.TransportError, ValueError):
                pass  # it has not started
            assert time.monotonic() < deadline_s, f"{query} has no result"
            time.sleep(0.2)


@pytest.fixture
def prometheus(plain_ring: RingClient, tmp_path: Path) -> Iterator[Prometheus]:
    if PROMETHEUS is None:
        pytest.skip("needs prometheus, and SLUICE_TEST_PROMETHEUS=1")
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(ALERTS)],
        "scrape_configs": [
            {"job_name": "sluice", "static_configs": [{"targets": [plain_ring.url.removeprefix("http://")]}]}
        ],
    }
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{find_free_port()}"
    command = [PROMETHEUS, f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data"]
    process = subprocess.Popen([*command, f"--web.listen-address={address}"], stderr=subprocess.DEVNULL)
    try:
        yield Prometheus(address)
    finally:
        process.kill()
        process.wait()


def test_every_query_of_the_dashboard_has_an_answer_and_no_alert_is_in_error(
    plain_ring: RingClient, prometheus: Prometheus
):
    prometheus.wait_for('up{job="sluice"} == 1')
    for _ in range(3):
        plain_ring.generate("To be, or not to be", max_tokens=16, ignore_eos=True)
    prometheus.wait_for('rate(vllm:generation_tokens_total{job="sluice"}[1m]) > 0')
    empty: list[str] = []
    for query in dashboard_queries():
        for name, value in VARIABLES.items():
            query = query.replace(name, value)
        if not prometheus.ask("query", query=query)["result"]:
            empty.append(query)
    for rule in alerts():
        measured = COMPARISON.split(rule["expr"])[0]
        if not prometheus.ask("query", query=measured)["result"]:
            empty.append(measured)
    assert [query for query in empty if not any(text in query for text in NO_DATA)] == []

    def rules() -> list[dict[str, Any]]:
        (group,) = prometheus.ask("rules")["groups"]
        return group["rules"]

    wait_until(lambda: all(rule["health"] != "unknown" for rule in rules()), TIMEOUT_S)
    assert {rule["name"]: rule["health"] for rule in rules()} == {rule["alert"]: "ok" for rule in alerts()}
    assert [rule["name"] for rule in rules() if rule["state"] == "firing"] == []
