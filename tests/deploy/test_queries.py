"""Dashboard, alerts and the page of metrics name what a server shows, and Prometheus can read them."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from supervisor.flags import find_sections, flag_fields, flag_name
from tests import metrics_page
from tests.deploy.promql import Matcher, Names, names_of

ROOT = Path(__file__).resolve().parents[2]
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yml"
DASHBOARD = ROOT / "deploy" / "grafana" / "sluice.json"

OF_PROMETHEUS = {"job", "instance"}
"""Labels that it adds."""

OPEN_VALUES = {"model_name", "job", "instance", "handler", "method"}
"""Labels whose values a server chooses at run time."""


@pytest.fixture(scope="module")
def text() -> str:
    return metrics_page.scrape()


@pytest.fixture(scope="module")
def shown(text: str) -> dict[str, dict[str, set[str]]]:
    """The values of each label of each metric, as a query would name it."""
    found: dict[str, dict[str, set[str]]] = {"up": {}}
    for family in metrics_page.families(text):
        for sample in family.samples:
            labels = found.setdefault(sample.name, {})
            for label, value in sample.labels.items():
                labels.setdefault(label, set()).add(value)
    return found


def alerts() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    return [panel for panel in json.loads(DASHBOARD.read_text())["panels"] if panel["type"] != "row"]


def dashboard_queries() -> list[str]:
    return [target["expr"] for panel in panels() for target in panel["targets"]]


def queries() -> Iterator[str]:
    yield from (rule["expr"] for rule in alerts())
    yield from dashboard_queries()


def test_the_page_of_metrics_is_what_a_server_shows(text: str):
    assert metrics_page.PAGE.read_text() == metrics_page.make_page(text), "run python -m tests.metrics_page"


def test_every_query_names_metrics_and_labels_that_exist(shown: dict[str, dict[str, set[str]]]):
    for query in queries():
        names = names_of(query)
        assert names.selectors, query
        known = OF_PROMETHEUS.union(*(shown.get(metric, {}) for metric, _ in names.selectors))
        assert set(names.grouped) <= known, query
        for metric, matchers in names.selectors:
            assert metric in shown, f"{metric} is in no scrape: {query}"
            for matcher in matchers:
                check_matcher(matcher, shown[metric], query)


def check_matcher(matcher: Matcher, labels: dict[str, set[str]], query: str) -> None:
    assert matcher.label in labels.keys() | OF_PROMETHEUS, f"no {matcher.label}: {query}"
    value = matcher.value.strip('"')
    if matcher.label not in OPEN_VALUES and not value.startswith("$"):
        expected = set(value.split("|")) if matcher.operator.endswith("~") else {value}
        assert expected <= labels[matcher.label] | {"5xx"}, f"{matcher}: {query}"


def test_handlers_that_alerts_leave_out_are_paths_of_the_server():
    (query,) = [rule["expr"] for rule in alerts() if rule["alert"] == "SluiceServerErrors"]
    paths = re.findall(r'handler!~"([^"]+)"', query)[0].split("|")
    routes = (ROOT / "frontend" / "api" / "routes.py").read_text()
    assert all(f'"{path}"' in routes for path in paths)


def test_metrics_that_users_wait_for_are_on_the_dashboard():
    used = {metric for query in dashboard_queries() for metric, _ in names_of(query).selectors}
    assert {
        "vllm:time_to_first_token_seconds_bucket",
        "vllm:kv_cache_usage_perc",
        "sluice_request_stage_seconds_sum",
        "sluice_process_restarts_total",
    } <= used


def test_panels_do_not_overlap_and_have_names_of_their_own():
    cells: set[tuple[int, int]] = set()
    for panel in panels():
        grid = panel["gridPos"]
        own = {(x, y) for x in range(grid["x"], grid["x"] + grid["w"]) for y in range(grid["y"], grid["y"] + grid["h"])}
        assert not own & cells, panel["title"]
        assert max(x for x, _ in own) < 24
        cells |= own
    assert len({panel["id"] for panel in panels()}) == len({panel["title"] for panel in panels()}) == len(panels())


def test_every_alert_reports_what_happened_and_what_to_do():
    for rule in alerts():
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert rule["annotations"]["summary"].endswith(".")
        assert len(rule["annotations"]["runbook"].split()) > 8, rule["alert"]
    assert len({rule["alert"] for rule in alerts()}) == len(alerts())


def test_flags_that_runbooks_name_exist():
    runbooks = " ".join(rule["annotations"]["runbook"] for rule in alerts())
    known = {flag_name(field.name)[2:] for section in find_sections().values() for field, _ in flag_fields(section)}
    flags = set(re.findall(r"--([a-z][a-z-]+)", runbooks))
    assert {"max-num-seqs", "kv-cache-memory-gb"} <= flags
    assert flags <= known


def ask_promtool(*words: str) -> str:
    """Returns what it prints."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("needs promtool, which comes with Prometheus")
    result = subprocess.run([promtool, *words], capture_output=True, text=True, timeout=60, check=False)
    return f"exit code {result.returncode}\n{result.stdout}{result.stderr}"


def test_prometheus_can_read_all_queries(tmp_path: Path):
    rules = [
        {"record": f"query:{index}", "expr": re.sub(r"\$__rate_interval", "1m", query)}
        for index, query in enumerate(dashboard_queries())
    ]
    written = tmp_path / "dashboard.yml"
    written.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    config = str(ALERTS.with_name("prometheus.yml"))
    for words in (("rules", str(ALERTS), str(written)), ("config", "--syntax-only", config)):
        output = ask_promtool("check", *words)
        assert output.startswith("exit code 0\n"), output


AT_A_SICK_SERVER = {
    'up{job="sluice", instance="gone"}': "0x20",
    'sluice_process_state{process="scheduler", state="hung"}': "1x20",
    'sluice_process_restarts_total{process="scheduler"}': "0+1x20",
    'sluice_process_degraded{process="scheduler"}': "1x20",
    'sluice_process_beat_age_seconds{process="tokenizer"}': "21x20",
    'sluice_requests_refused_total{code="queue_full"}': "0+1x20",
    "vllm:num_requests_waiting": "3x20",
    'vllm:time_to_first_token_seconds_bucket{le="10"}': "0x20",
    'vllm:time_to_first_token_seconds_bucket{le="20"}': "0+60x20",
    'vllm:time_to_first_token_seconds_bucket{le="+Inf"}': "0+60x20",
    "vllm:num_preemptions_total": "0+120x20",
    'vllm:request_success_total{finished_reason="error"}': "0+2x20",
    'vllm:request_success_total{finished_reason="stop"}': "0+98x20",
    'http_requests_total{status="5xx", handler="/generate"}': "0+2x20",
    'http_requests_total{status="2xx", handler="/generate"}': "0+98x20",
    "sluice_frontends_missing": "1x20",
    'sluice_otlp_spans_total{outcome="export_failed"}': "0+1x20",
}
"""Series by the minute, with which every alert fires."""

AT_A_HEALTHY_SERVER = {
    'up{job="sluice", instance="here"}': "1x20",
    'sluice_process_restarts_total{process="scheduler"}': "1x20",
    'sluice_process_beat_age_seconds{process="tokenizer"}': "1x20",
    'sluice_requests_refused_total{code="queue_full"}': "7x20",
    "vllm:num_requests_waiting": "3 0 3 0 3 0 3 0 3 0 3 0 3 0 3 0 3 0 3 0 3",
    'vllm:time_to_first_token_seconds_bucket{le="10"}': "0+60x20",
    'vllm:time_to_first_token_seconds_bucket{le="+Inf"}': "0+60x20",
    "vllm:num_preemptions_total": "0+30x20",
    'vllm:request_success_total{finished_reason="error"}': "5x20",
    'vllm:request_success_total{finished_reason="stop"}': "0+98x20",
    'http_requests_total{status="5xx", handler="/health"}': "0+50x20",
    'http_requests_total{status="2xx", handler="/generate"}': "0+98x20",
    'sluice_otlp_spans_total{outcome="exported"}': "0+1x20",
}


@pytest.mark.parametrize(("series", "fires"), [(AT_A_SICK_SERVER, True), (AT_A_HEALTHY_SERVER, False)])
def test_every_alert_fires_at_a_sick_server_and_none_at_a_healthy_one(
    tmp_path: Path, series: dict[str, str], fires: bool
):
    """All of them are expected to fire, with any labels and texts; promtool lists the alerts that fired."""
    names = [rule["alert"] for rule in alerts()]
    cases = [{"eval_time": "20m", "alertname": name, "exp_alerts": []} for name in names]
    values = [{"series": name, "values": value} for name, value in series.items()]
    written = tmp_path / "test.yml"
    tests = [{"interval": "1m", "input_series": values, "alert_rule_test": cases}]
    written.write_text(yaml.safe_dump({"rule_files": [str(ALERTS)], "tests": tests}))
    output = ask_promtool("test", "rules", str(written))
    fired = {name for name in names if re.search(rf"alertname: ?{name}\b", output)}
    assert fired == (set(names) if fires else set()), output
    assert output.startswith(f"exit code {int(fires)}\n"), output


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("up == 0", Names([("up", [])], [])),
        (
            'sum by (le, job) (rate(vllm:a_bucket{x="{a}",y=~"b|c"}[5m])) > 0 and on (job) b offset 5m',
            Names(
                [("vllm:a_bucket", [Matcher("x", "=", '"{a}"'), Matcher("y", "=~", '"b|c"')]), ("b", [])],
                ["le", "job", "job"],
            ),
        ),
        ("histogram_quantile(0.95, rate(a[$__rate_interval])) / 1e3", Names([("a", [])], [])),
    ],
)
def test_names_are_found(query: str, names: Names):
    assert names_of(query) == names
