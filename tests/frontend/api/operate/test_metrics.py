"""`/metrics` over real HTTP, read with Prometheus's own parser."""

import msgspec
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from messages.config.server import HttpConfig, RunConfig, SchedulingConfig
from messages.control.histograms import BOUNDS, CounterTotals, HistogramCounts
from messages.control.processes import ProcessTable
from messages.ring.peers import MetricFamily, MetricSample, MetricsReport, ReportMetrics
from messages.ring.replies import Usage
from tests.frontend.frontend_run import FrontendRun, InThread, final, make_config, step, table, table_after, wait_until
from tests.frontend.other_frontend import OtherFrontend


def scrape(run: FrontendRun) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Returns the value of each sample by its name and labels, all but the model's name."""
    response = run.client.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain")
    found: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    for family in text_string_to_metric_families(response.text):
        for sample in family.samples:
            labels = {name: value for name, value in sample.labels.items() if name != "model_name"}
            found[sample.name, frozenset(labels.items())] = sample.value
    return found


class Metrics:
    """One scrape."""

    def __init__(self, run: FrontendRun):
        self._samples = scrape(run)

    def __call__(self, name: str, **labels: str) -> float:
        return self._samples[name, frozenset(labels.items())]

    def info(self) -> dict[str, str]:
        """Returns the labels of `sluice_info`."""
        (labels,) = (labels for name, labels in self._samples if name == "sluice_info")
        return dict(labels)


def with_scheduler(processes: ProcessTable, **fields: object) -> ProcessTable:
    statuses = [
        msgspec.structs.replace(status, **fields) if status.name == "scheduler" else status
        for status in processes.processes
    ]
    return ProcessTable(tuple(statuses))


def test_requests_are_counted_as_they_end():
    with FrontendRun() as run:
        with run.call({"max_tokens": 5}) as call:
            message = run.take_request()
            run.send(step([(message, 1, "a")]))
            call.next_event()
            run.send(step([(message, 2, "b")]))
            call.next_event()
            run.send(step(finals=(final(message, "c", (3,), usage=Usage(7, 4, 3), finish_reason="stop"),)))
            call.events()
        with run.call({"stream": False}) as call:
            run.send(final(run.take_request(), finish_reason="error"))
            call.json()
        seen = Metrics(run)
        assert seen("vllm:request_success_total", finished_reason="stop") == 1
        assert seen("vllm:request_success_total", finished_reason="error") == 1
        assert seen("vllm:request_success_total", finished_reason="timeout") == 0
        assert seen("vllm:prompt_tokens_total") == 7
        assert seen("sluice_cached_prompt_tokens_total") == 4
        assert seen("vllm:generation_tokens_total") == 3
        assert seen("vllm:inter_token_latency_seconds_count") == 2
        assert seen("vllm:time_to_first_token_seconds_count") == 1
        assert seen("vllm:e2e_request_latency_seconds_count") == 1
        assert seen("vllm:request_prompt_tokens_sum") == 7
        assert seen("vllm:request_generation_tokens_bucket", le="5.0") == 1
        assert seen("vllm:request_params_max_tokens_sum") == 5
        assert seen("sluice_requests_open") == 0
        assert seen("vllm:request_prefill_kv_computed_tokens_sum") == 7 - 4
        assert seen("sluice_request_stage_seconds_count", stage="accept") == 2
        assert seen("sluice_request_stage_seconds_count", stage="preempted") == 0
        assert seen("sluice_request_stage_seconds_sum", stage="send") > 0
        assert seen("http_request_duration_seconds_count", handler="/generate", method="POST") == 2
        assert seen("sluice_connections") >= 1
        assert seen("sluice_streams") == seen("sluice_requests_on_hold") == 0
        assert seen("sluice_otlp_spans_total", outcome="exported") == 0
        first_token_s = seen("vllm:time_to_first_token_seconds_sum")
        assert 0 < first_token_s < seen("vllm:e2e_request_latency_seconds_sum")


def test_what_clients_and_the_door_do_is_counted():
    config = make_config(scheduling=SchedulingConfig(max_num_seqs=1, max_queued_requests=0))
    with FrontendRun(config) as run:
        with run.call():
            message = run.take_request()
            assert run.client.post("/generate", json={"prompt": "x"}).status_code == 503
        run.take_abort()
        run.send(step(finals=(final(message, finish_reason="abort"),)))
        wait_until(lambda: run.gauge("requests") == 0)
        seen = Metrics(run)
        assert seen("sluice_clients_gone_total") == 1
        assert seen("sluice_requests_refused_total", code="queue_full") == 1
        assert seen("vllm:request_success_total", finished_reason="abort") == 1


def test_what_auto_has_become_is_notified_by_the_info():
    placement = {"device": "cuda:0", "dtype": "bfloat16", "kv_cache_dtype": "float8_e4m3fn"}
    with FrontendRun() as run:
        run.show(with_scheduler(table(), placement=placement))
        assert Metrics(run).info().items() >= placement.items()
        assert run.client.get("/server_info").json()["placement"] == {"scheduler": placement}


def test_the_scheduler_is_shown_from_its_beats_and_counters_never_fall():
    with FrontendRun() as run:
        gauges = {"running": 3.0, "waiting": 4.0, "pages_in_use": 1.0, "pages_all": 4.0, "steps": 10.0}
        gauges |= {"prompt_tokens": 100.0, "prefix_hit_tokens": 40.0, "preemptions": 2.0}
        gauges |= {"drafts": 10.0, "draft_tokens": 30.0, "accepted_tokens": 20.0, "pages_evicted": 5.0}
        gauges |= {"prefilling": 1.0, "decoding": 2.0, "compiling": 3.0}
        counts = [0] * (len(BOUNDS["step_seconds"]) + 1)
        counts[2] = 10
        grammars = HistogramCounts((0,) * len(BOUNDS["grammar_seconds"]) + (1,), 40.0)
        histograms = {"step_seconds": HistogramCounts(tuple(counts), 0.04), "grammar_seconds": grammars}
        busy = with_scheduler(table(scheduler="busy"), gauges=gauges, histograms=histograms, degraded="no graphs")
        run.show(busy)
        seen = Metrics(run)
        assert seen.info().items() >= {"device": "auto", "dtype": "auto"}.items(), "nothing is known yet"
        assert seen("vllm:num_requests_running") == 3
        assert seen("vllm:num_requests_waiting") == 4
        assert seen("vllm:kv_cache_usage_perc") == 0.25
        assert seen("vllm:prefix_cache_queries_total") == 100
        assert seen("vllm:prefix_cache_hits_total") == 40
        assert seen("vllm:num_preemptions_total") == 2
        assert seen("vllm:spec_decode_num_drafts_total") == 10
        assert seen("vllm:spec_decode_num_draft_tokens_total") == 30
        assert seen("vllm:spec_decode_num_accepted_tokens_total") == 20
        assert seen("sluice_pages_evicted_total") == 5
        assert seen("sluice_requests_prefilling") == 1
        assert seen("sluice_requests_decoding") == 2
        assert seen("sluice_requests_compiling") == 3
        assert seen("sluice_grammar_compile_seconds_sum") == 40
        assert seen("sluice_process_degraded", process="scheduler") == 1
        assert seen("sluice_process_degraded", process="tokenizer") == 0
        assert seen("sluice_step_seconds_count") == 10
        assert seen("sluice_step_seconds_bucket", le="0.0025") == 0
        assert seen("sluice_step_seconds_bucket", le="0.005") == 10
        assert seen("sluice_process_state", process="scheduler", state="busy") == 1
        assert seen("sluice_process_state", process="scheduler", state="dead") == 0
        before = CounterTotals().plus(gauges, histograms)
        run.show(with_scheduler(table_after({}, scheduler="restarting"), counted_before=before))
        successor = with_scheduler(
            table_after({"scheduler": 2}, scheduler="busy"), gauges={"steps": 1.0}, counted_before=before
        )
        run.show(successor)
        seen = Metrics(run)
        assert seen("sluice_steps_total") == 11
        assert seen("vllm:num_preemptions_total") == 2
        assert seen("sluice_step_seconds_count") == 10
        assert seen("sluice_process_restarts_total", process="scheduler") == 1
        assert seen("sluice_process_incarnation", process="scheduler") == 2


def test_a_process_is_shown_with_what_it_costs():
    with FrontendRun() as run:
        own = psutil.Process()
        run.show(with_scheduler(table(), pid=own.pid))
        started_s = pytest.approx(own.create_time(), abs=1)
        wait_until(lambda: Metrics(run)("sluice_process_start_time_seconds", process="scheduler") == started_s)
        seen = Metrics(run)
        assert seen("sluice_process_resident_bytes", process="scheduler") == pytest.approx(own.memory_info().rss, rel=1)
        assert seen("sluice_process_cpu_seconds_total", process="scheduler") > 0
        assert seen("sluice_process_open_fds", process="scheduler") > 0
        assert seen("sluice_process_threads", process="scheduler") >= 1
        assert seen("sluice_process_beat_age_seconds", process="scheduler") >= 0
        assert seen("sluice_process_cpu_seconds_total", process="tokenizer") >= 0


@pytest.mark.parametrize("escaping", ["", ";escaping=allow-utf-8", ";escaping=underscores"])  # Prometheus 2 and 3
def test_open_metrics_where_they_are_requested(server: FrontendRun, escaping: str):
    accepted = f"application/openmetrics-text;version=1.0.0{escaping},text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
    response = server.client.get("/metrics", headers={"Accept": accepted})
    assert response.headers["content-type"].startswith("application/openmetrics-text")
    assert response.text.endswith("# EOF\n")
    assert "\nvllm:generation_tokens_total{" in response.text
    assert "vllm_" not in response.text
    assert 'model_name="org/m"' in response.text


def test_http_requests_are_counted_by_template_method_and_class_of_status(server: FrontendRun):
    before = scrape(server)
    assert server.client.get("/v1/models/org/m").status_code == 200
    assert server.client.get("/v1/models/else").status_code == 404
    assert server.client.get("/wp-login.php").status_code == 404
    assert server.client.request("PROPFIND", "/metrics").status_code == 405
    assert server.client.post("/generate", json={}).status_code == 400
    after = scrape(server)

    def num_new(handler: str, method: str, status: str) -> float:
        key = "http_requests_total", frozenset({"handler": handler, "method": method, "status": status}.items())
        return after[key] - before.get(key, 0.0)

    assert num_new("/v1/models/{id}", "GET", "2xx") == 1
    assert num_new("/v1/models/{id}", "GET", "4xx") == 1
    assert num_new("none", "GET", "4xx") == 1
    assert num_new("/metrics", "other", "4xx") == 1
    assert num_new("/metrics", "GET", "2xx") == 1
    assert num_new("/generate", "POST", "4xx") == 1


def test_a_request_that_is_refused_before_its_endpoint_counts_for_it():
    with FrontendRun(make_config(HttpConfig(port=0, api_key=("secret",)))) as run:
        assert run.client.post("/v1/completions", json={}).status_code == 401
        run.client.headers["authorization"] = "Bearer secret"
        assert Metrics(run)("http_requests_total", handler="/v1/completions", method="POST", status="4xx") == 1


OTHERS = MetricsReport(
    (
        MetricFamily(
            "vllm:request_success",
            "text",
            "counter",
            (
                MetricSample(
                    "vllm:request_success_total", (("model_name", "org/m"), ("finished_reason", "length")), 40.0
                ),
            ),
        ),
    )
)


def test_a_scrape_shows_what_each_of_several_frontends_has_counted():
    with FrontendRun(make_config(run=RunConfig(frontend_workers=2))) as run:
        other = OtherFrontend(run)
        run.round_trip()
        scraping = InThread(lambda: Metrics(run))
        ask = other.take_question()
        assert ask.question == ReportMetrics()
        other.answer(ask, OTHERS)
        metrics = scraping.result()
        assert metrics("vllm:request_success_total", worker="frontend", finished_reason="length") == 1
        assert metrics("vllm:request_success_total", worker="frontend-2", finished_reason="length") == 40
        assert metrics("sluice_requests_open", worker="frontend") == 0
        assert metrics("vllm:e2e_request_latency_seconds_count", worker="frontend") == 1
        assert metrics("http_requests_total", worker="frontend", handler="/generate", method="POST", status="2xx") == 1
        assert metrics("sluice_process_incarnation", process="scheduler") == 1
        assert metrics("sluice_frontends_missing") == 0
        scraping = InThread(lambda: Metrics(run))
        other.take_question()
        metrics = scraping.result()
        assert metrics("vllm:request_success_total", worker="frontend", finished_reason="length") == 1
        assert metrics("sluice_frontends_missing") == 1


def test_a_frontend_reports_what_it_has_counted_to_another():
    with FrontendRun(make_config(run=RunConfig(frontend_workers=2))) as run:
        other = OtherFrontend(run)
        run.round_trip()
        families = {family.name: family for family in other.ask(ReportMetrics(), MetricsReport).families}
        assert families["vllm:request_success"].kind == "counter"
        values = {sample.labels: sample.value for sample in families["vllm:request_success"].samples}
        assert values[("model_name", "org/m"), ("finished_reason", "length")] == 1
        assert families["vllm:e2e_request_latency_seconds"].kind == "histogram"
        assert "http_requests" in families
