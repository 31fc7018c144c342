import json
from pathlib import Path

import pytest
import torch

from benchmarks import bench_offline
from benchmarks.bench_offline import DeviceLimits, Lengths, floor_s, main, make_workload
from benchmarks.kernels import measure
from benchmarks.model_shapes import SHAPES, kv_bytes, read_shape, weight_bytes

TINY = SHAPES["qwen3-0.6b"] | {
    "vocab_size": 10_001,
    "max_position_embeddings": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}


@pytest.fixture(autouse=True)
def small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(bench_offline.SHAPES, "qwen3-0.6b", TINY)
    monkeypatch.setattr(measure, "READ_BYTES", {"cpu": 1 << 16})
    monkeypatch.setattr(measure, "PRODUCT_SIZE", {"cpu": 32})


@pytest.mark.parametrize("more", [[], ["--shared-prefix", "20", "--no-overlap", "--enforce-eager"]])
def test_it_runs_on_a_cpu(tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str]) -> None:
    file = tmp_path / "offline.json"
    flags = ["--device", "cpu", "--cpu-threads", "1", "--max-num-seqs", "3", *more[2:]]
    assert main(["--num-sequences", "4", "--max-tokens", "32", "--json", str(file), *more[:2], *flags]) == 0
    printed = capsys.readouterr().out
    document = json.loads(file.read_bytes())
    result = document["results"]
    assert document["commit"]
    assert result["torch"] == torch.__version__
    assert result["num_output_tokens"] == 4 * 32
    assert result["num_steps"] >= 32
    assert result["degraded"] == ""
    assert result["load_s"] > result["capture_s"] == 0
    assert result["first_token_s"] > 0
    assert result["output_tok_per_s"] == pytest.approx(128 / result["seconds"])
    assert result["fraction_of_floor"] == pytest.approx(result["output_tok_per_s"] / result["floor_tok_per_s"])
    assert f"{result['output_tok_per_s']:,.0f} output tok/s" in printed


def test_bad_usage_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--num-sequences", "0"]) == 2
    assert main(["--shared-prefix", "2000"]) == 2
    assert main(["--no-such-flag"]) == 2
    assert "--no-such-flag: unknown flag" in capsys.readouterr().err


def test_the_workload_is_the_one_that_others_publish() -> None:
    prompts, params = make_workload(256, 1024, 0)
    assert sum(map(len, prompts)) == 142_827
    assert sum(own.max_tokens for own in params) == 133_966
    assert {own.temperature for own in params} == {0.6}


def test_prompts_share_their_beginning() -> None:
    prompts, _ = make_workload(20, 1024, 700)
    assert len({tuple(prompt[:700]) for prompt in prompts}) == 1
    assert len({tuple(prompt) for prompt in prompts}) == 20
    assert min(map(len, prompts)) >= 701


def test_the_floor_counts_what_must_be_moved() -> None:
    config = read_shape(TINY, 64)
    layer = (4 + 2 * 2) * 8 * 32 + 32 * 32 + 3 * 32 * 64 + 2 * 32 + 2 * 8
    assert weight_bytes(config, 2) == 2 * (2 * layer + 32 + 10_001 * 32)
    assert kv_bytes(config, 2) == 2 * 2 * 2 * 2 * 8
    limits = DeviceLimits(bytes_per_s=1e6, flop_per_s=1e9)
    # Two requests of 10 tokens: outputs 2 and 3 are computed with 11, 11 and 12 keys.
    apart = floor_s(config, 2, Lengths([10, 10], [2, 3], 0, 8), limits)
    assert apart["kv"] == pytest.approx(kv_bytes(config, 2) * (11 + 11 + 12) / 1e6)
    assert apart["weights"] == pytest.approx(weight_bytes(config, 2) * 2 / 1e6)
    assert apart["total"] == pytest.approx(sum(value for name, value in apart.items() if name != "total"))
    # Four of each prompt are alike: they are read once in each of two steps.
    shared = floor_s(config, 2, Lengths([10, 10], [2, 3], 4, 8), limits)
    assert shared["kv"] == pytest.approx(kv_bytes(config, 2) * (7 + 7 + 8 + 2 * 4) / 1e6)
    assert shared["prefill"] < apart["prefill"]
    assert Lengths([1, 1, 1], [5, 5, 5], 0, 2).num_decode_steps == 6
