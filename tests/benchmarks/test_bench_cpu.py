import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.bench_cpu import join_limits, read_peer
from benchmarks.kernels.measure import median_ms
from benchmarks.load.batch_client import WORKLOADS, Server, measure, seconds_of
from benchmarks.load.connection import Target
from benchmarks.load.server_facts import ServerUnavailableError
from benchmarks.load.workloads import PlannedRequest
from benchmarks.model_shapes import SHAPES, read_shape, weight_bytes, write_model
from messages.errors import UsageError

NOWHERE = Target("127.0.0.1", 1, timeout_s=1.0)


class Counting(Server):
    """Answers by itself, a token less than asked for where it is `short`."""

    def answer(self, planned: PlannedRequest) -> int:
        return planned.max_tokens - (self.model == "short")


def test_figures() -> None:
    assert WORKLOADS["W1"].figure(2.0) == 64
    assert WORKLOADS["W2"].figure(4.0) == 32 * 128 / 4
    assert WORKLOADS["W3"].figure(2.0) == 8 * 900 / 2
    assert WORKLOADS["W4"].figure(2.5) == 2.5


def test_only_the_shared_part_is_alike() -> None:
    requests = WORKLOADS["W4"].requests(1000, seed=3)
    assert len(requests) == 32
    assert all(len(planned.prompt) == 800 and planned.max_tokens == 32 for planned in requests)
    assert len({tuple(planned.prompt[:768]) for planned in requests}) == 1
    assert len({tuple(planned.prompt[768:]) for planned in requests}) == 32
    assert requests == WORKLOADS["W4"].requests(1000, seed=3)
    assert requests[0].prompt[:768] != WORKLOADS["W4"].requests(1000, seed=4)[0].prompt[:768]


def test_servers_take_turns_in_every_round() -> None:
    lines = measure({"sluice": Counting(NOWHERE), "peer": Counting(NOWHERE, "full")}, ["W1", "W3"], 3, 1000, rest_s=0.0)
    assert [line["name"] for line in lines] == ["W1", "W3"]
    for line in lines:
        assert {server: len(figures) for server, figures in line["rounds"].items()} == {"sluice": 3, "peer": 3}
        assert min(line["median"].values()) > 0


def test_an_answer_of_another_length_is_an_error() -> None:
    with pytest.raises(ServerUnavailableError, match="an answer has 7 tokens"):
        seconds_of(Counting(NOWHERE, "short"), [PlannedRequest([1], 8)], 1)


def test_no_server_is_an_error() -> None:
    with pytest.raises(ServerUnavailableError, match=r"127\.0\.0\.1:1/v1/completions"):
        Server(NOWHERE, "model").answer(PlannedRequest([1], 8))


@pytest.mark.parametrize(("model", "path"), [("", "/generate"), ("gpt2", "/v1/completions")])
def test_what_is_sent(model: str, path: str) -> None:
    server = Server(NOWHERE, model)
    assert server.path == path
    body: dict[str, Any] = server.body(PlannedRequest([5, 6], 8))
    assert body.get("model", "") == model
    assert (body["prompt"], body["max_tokens"], body["ignore_eos"], body["stream"]) == ([5, 6], 8, True, False)


@pytest.mark.parametrize(
    ("shape", "num_parameters"),
    [("gpt2-124m", 124.4e6), ("llama-135m", 134.5e6), ("qwen2-0.5b", 494.0e6), ("qwen3-0.6b", 596.0e6)],
)
def test_the_weights_that_a_token_reads(shape: str, num_parameters: float) -> None:
    limits = join_limits(
        weight_bytes(read_shape(SHAPES[shape], 1024), torch.bfloat16.itemsize),
        {"read_gb_per_s": 10.0, "bfloat16_product_gflop_per_s": 1.0},
        {"read_gb_per_s": 9.0, "bfloat16_product_gflop_per_s": 2.0},
    )
    assert (limits["read_gb_per_s"], limits["bfloat16_product_gflop_per_s"]) == (10.0, 2.0)
    assert limits["weight_bytes"] == pytest.approx(2 * num_parameters, rel=0.01)
    assert limits["one_stream_tok_per_s_at_read_limit"] == pytest.approx(10e9 / (2 * num_parameters), rel=0.01)


def test_a_peer_is_what_it_is_and_where_it_is() -> None:
    about, server = read_peer("vLLM, bf16=http://127.0.0.1:8080/gpt2")
    assert about == "vLLM, bf16"
    assert (server.target.host, server.target.port, server.model) == ("127.0.0.1", 8080, "gpt2")


@pytest.mark.parametrize("text", ["http://127.0.0.1:8080/gpt2", "vLLM=127.0.0.1:8080", "vLLM=http://127.0.0.1:8080/"])
def test_a_peer_that_cannot_be_asked(text: str) -> None:
    with pytest.raises(UsageError, match="--peer"):
        read_peer(text)


def test_a_model_directory_needs_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"tokenizer\.json"):
        write_model(tmp_path, SHAPES["gpt2-124m"], tmp_path)
    (tmp_path / "from").mkdir()
    (tmp_path / "from" / "tokenizer.json").write_text("{}", encoding="utf-8")
    write_model(tmp_path, SHAPES["gpt2-124m"], tmp_path / "from")
    assert json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))["n_embd"] == 768
    assert (tmp_path / "tokenizer.json").exists()


def test_forms_take_turns() -> None:
    order: list[str] = []
    times = median_ms({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, 3)
    assert set(times) == {"a", "b"}
    changes = sum(first != second for first, second in itertools.pairwise(order))
    assert changes >= 6
