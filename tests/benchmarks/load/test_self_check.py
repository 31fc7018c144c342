"""The load generator measures its own cost, which is small."""

import pytest

from benchmarks.load.paced_server import check_client, paced_server
from benchmarks.load.server_facts import ServerUnavailableError, ask_server


def test_the_client_is_much_lighter_than_the_tokens_it_receives() -> None:
    report = check_client(32)
    assert report.outcomes == {"ok": 64}
    assert report.output_tokens == 64 * 200
    assert report.latencies["inter-token"].p50_ms >= 4.5
    assert 0 < report.client.cpu_us_per_token < 1000


def test_the_paced_server_ends_with_its_user() -> None:
    with paced_server(1.0) as target:
        assert ask_server(target).vocab_size == 2048
    with pytest.raises(ServerUnavailableError, match="nothing answers"):
        ask_server(target)
