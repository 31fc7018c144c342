"""The metrics of several servers on one page, read back by Prometheus's own parser."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from extras.models.metrics import merge_metrics

ODD_NAME = 'a"b\\c\nd'


def page(num_tokens: int, *, is_model: bool = True) -> str:
    registry = CollectorRegistry()
    tokens = Counter("tokens", 'Tokens, "all" of them.', ["engine"], registry=registry)
    tokens.labels('1 {x="y"}').inc(num_tokens)
    if is_model:
        Gauge("up_s", "Seconds.", registry=registry).set(1.5)
        Histogram("wait_s", "Waits.", buckets=(1, 2), registry=registry).observe(1.5)
    return generate_latest(registry).decode()


def samples(text: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """By family; a family must not come twice."""
    families = list(text_string_to_metric_families(text))
    assert len({family.name for family in families}) == len(families)
    return {
        family.name: {
            (("", sample.name), *sorted(sample.labels.items())): sample.value
            for sample in family.samples
            if not sample.name.endswith("_created")
        }
        for family in families
    }


def test_each_family_stands_once_and_each_sample_keeps_its_value():
    found = samples(merge_metrics(page(1, is_model=False), {"m": page(20), ODD_NAME: page(300)}))
    engine = ("engine", '1 {x="y"}')
    assert found["tokens"] == {
        (("", "tokens_total"), engine): 1,
        (("", "tokens_total"), engine, ("model", "m")): 20,
        (("", "tokens_total"), engine, ("model", ODD_NAME)): 300,
    }
    assert found["up_s"] == {(("", "up_s"), ("model", name)): 1.5 for name in ("m", ODD_NAME)}
    assert found["wait_s"][("", "wait_s_bucket"), ("le", "2.0"), ("model", "m")] == 1
    assert found["wait_s"][("", "wait_s_bucket"), ("le", "1.0"), ("model", "m")] == 0


def test_a_page_without_models_is_unchanged():
    text = page(1)
    assert merge_metrics(text, {}) == text
