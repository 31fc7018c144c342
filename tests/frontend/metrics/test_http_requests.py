import pytest

from frontend.metrics.http_requests import HttpRequests


def test_clients_cannot_make_series():
    requests = HttpRequests()
    for index in range(100):
        requests.record(None, f"METHOD{index}", 400 + index % 5, 0.1)
    requests.record("/generate", "POST", 200, 2.0)
    family, durations = requests.collect()
    values = {tuple(sample.labels.values()): sample.value for sample in family.samples}
    assert values == {("none", "other", "4xx"): 100, ("/generate", "POST", "2xx"): 1}
    assert {sample.name for sample in family.samples} == {"http_requests_total"}
    assert set(family.samples[0].labels) == {"handler", "method", "status"}
    sums = {tuple(sample.labels.values()): sample.value for sample in durations.samples if sample.name.endswith("_sum")}
    assert sums == {("none", "other"): pytest.approx(10.0), ("/generate", "POST"): 2.0}
