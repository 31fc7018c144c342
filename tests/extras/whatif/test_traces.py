"""Traces are read, scaled and replayed with the lengths, times and shared prefixes they recorded."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from extras.whatif.traces import TraceRequest, TraceScale, fit_scale, num_cut, random_ids, read_trace, replay
from messages.errors import UsageError

VOCAB_SIZE = 2048


def mooncake_file(folder: Path, *rows: tuple[int, int, int, list[int]]) -> Path:
    names = ("timestamp", "input_length", "output_length", "hash_ids")
    path = folder / "trace.jsonl"
    path.write_text("".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows), encoding="utf-8")
    return path


def num_common(one: list[int], other: list[int]) -> int:
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def test_a_mooncake_trace_keeps_its_shared_blocks(tmp_path: Path) -> None:
    path = mooncake_file(
        tmp_path,
        (1000, 1200, 100, [0, 1, 2]),
        (3000, 1500, 40, [0, 1, 3]),
        (3000, 600, 20, [7, 8]),
    )
    trace = read_trace(path, 100)
    assert trace[0] == TraceRequest(at_s=1.0, num_input=1200, num_output=100, block_ids=(0, 1, 2))
    planned = list(replay(trace, TraceScale(0.1, speed=4.0, max_model_len=1000), VOCAB_SIZE, seed=0))
    assert [request.at_s for request in planned] == [0.0, 0.5, 0.5]
    assert [len(request.prompt_ids) for request in planned] == [120, 150, 60]
    assert [request.num_output for request in planned] == [10, 4, 2]
    prompts = [request.prompt_ids for request in planned]
    assert round(2 * 51.2) <= num_common(prompts[0], prompts[1]) <= round(2 * 51.2) + 2
    assert num_common(prompts[0], prompts[2]) <= 2
    assert planned == list(replay(trace, TraceScale(0.1, speed=4.0, max_model_len=1000), VOCAB_SIZE, seed=0))
    assert prompts[0] != next(replay(trace, TraceScale(0.1, 4.0, 1000), VOCAB_SIZE, seed=1)).prompt_ids


def test_a_prompt_that_is_too_long_loses_its_end_and_keeps_what_it_shares(tmp_path: Path) -> None:
    path = mooncake_file(tmp_path, (0, 4096, 900, list(range(8))), (0, 2048, 100, [0, 1, 2, 3]))
    trace = read_trace(path, 100)
    scale = TraceScale(1.0, 1.0, max_model_len=1024)
    long, short = replay(trace, scale, VOCAB_SIZE, seed=0)
    assert (len(long.prompt_ids), long.num_output) == (512, 512)
    assert (len(short.prompt_ids), short.num_output) == (924, 100)
    assert num_common(long.prompt_ids, short.prompt_ids) == 512
    assert num_cut(trace, scale) == 2


def test_an_azure_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 23:59:59.9799600,4808,10\n"
        "2023-11-17 00:00:01.4799600,110,27\n",
        encoding="utf-8",
    )
    planned = list(replay(read_trace(path, 100), TraceScale(0.1, 1.0, 4096), VOCAB_SIZE, seed=0))
    assert [(len(request.prompt_ids), request.num_output) for request in planned] == [(481, 1), (11, 3)]
    assert planned[1].at_s == pytest.approx(1.5, abs=1e-5)


def test_the_default_scale_fits_95_percent_and_never_enlarges() -> None:
    trace = [TraceRequest(0.0, 100 * n, 0) for n in range(1, 101)]
    scale = fit_scale(trace, max_model_len=512, speed=1.0)
    assert num_cut(trace, scale) == 5
    assert fit_scale(trace, max_model_len=1_000_000, speed=2.0) == TraceScale(1.0, 2.0, 1_000_000)


def test_every_request_has_a_prompt_and_an_output_at_any_scale() -> None:
    trace = [TraceRequest(0.0, 3, 1, (9,)), TraceRequest(0.0, 3, 1), TraceRequest(0.0, 600, 0, (4, 5))]
    for scale in (1e-4, 0.01, 1.0):
        for request in replay(trace, TraceScale(scale, 1.0, 512), VOCAB_SIZE, seed=0):
            assert len(request.prompt_ids) >= 1
            assert request.num_output >= 1


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("trace.txt", "", "neither"),
        ("trace.jsonl", '{"timestamp": 0}\n', "does not have the fields"),
        ("trace.jsonl", "no json\n", "does not have the fields"),
        ("trace.csv", "a,b\n1,2\n", "does not have the fields"),
        ("trace.jsonl", "", "holds no requests"),
    ],
)
def test_files_that_are_no_traces(tmp_path: Path, name: str, text: str, why: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=why):
        read_trace(tmp_path / name, 10)


def test_a_trace_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        read_trace(tmp_path / "trace.csv", 10)


@pytest.mark.parametrize("name", ["mooncake/conversation_trace.jsonl", "mooncake/synthetic_trace.jsonl"])
def test_real_mooncake_traces_fit_a_small_context_and_share_as_recorded(shared_dir: Path, name: str) -> None:
    trace = read_trace(shared_dir / "traces" / name, 200)
    scale = fit_scale(trace, max_model_len=512, speed=10.0)
    planned = list(replay(trace, scale, VOCAB_SIZE, seed=0))
    assert len(planned) == 200
    assert all(len(request.prompt_ids) + request.num_output <= 512 for request in planned)
    assert num_cut(trace, scale) <= 10
    assert [request.at_s for request in planned] == sorted(request.at_s for request in planned)
    for (one, a), (other, b) in itertools.pairwise(zip(trace, planned, strict=True)):
        num_blocks = num_common(list(one.block_ids), list(other.block_ids))
        recorded = min(round(512 * num_blocks * scale.tokens), len(a.prompt_ids), len(b.prompt_ids))
        assert num_common(a.prompt_ids, b.prompt_ids) >= recorded


def test_the_real_azure_trace(shared_dir: Path) -> None:
    trace = read_trace(shared_dir / "traces" / "azure-2023" / "AzureLLMInferenceTrace_code.csv", 10_000)
    assert len(trace) == 8819
    assert (trace[0].num_input, trace[0].num_output) == (4808, 10)
    assert 3000 < trace[-1].at_s - trace[0].at_s < 4000, "the trace is an hour long"


def test_random_ids_of_a_tiny_vocabulary_and_of_no_tokens() -> None:
    rng = np.random.default_rng(0)
    assert set(random_ids(rng, 3, 50)) == {2}
    assert random_ids(rng, 100, 0) == random_ids(rng, 100, -5) == []
