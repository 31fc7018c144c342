"""`make bench-gpu` without a GPU: order, budget, parts that fail, die or hang, one result file, and the page of it."""

import json
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from benchmarks import run_gpu
from benchmarks.bench_offline import offline_workload
from benchmarks.gpu_parts import KERNELS, Part, list_parts
from benchmarks.kernels.__main__ import BENCHMARKS
from benchmarks.page.gpu import make_gpu_page
from benchmarks.result_file import ROOT

DEADLINE_S = 30.0


def test_the_offline_workload_is_the_one_that_others_publish() -> None:
    prompts, output_lens = offline_workload()
    assert (sum(map(len, prompts)), sum(output_lens)) == (142_827, 133_966)
    assert (prompts, output_lens) == offline_workload()


def test_parts_come_in_order_of_value() -> None:
    names = [part.name for part in list_parts()]
    assert len(set(names)) == len(names)
    order = ["golden", "step_qwen3-0.6b", "prefill_qwen3-0.6b", "offline_qwen3-0.6b"]
    assert names[:4] == order
    later = ["offline_qwen3-0.6b_shared_prefix", "tuning_decode_qwen3-0.6b", "kernel_limits", "offline_llama-3-8b"]
    later += ["offline_qwen3-14b", "http_qwen3-0.6b", "transformers_qwen3-0.6b"]
    assert [names.index(name) for name in later] == sorted(names.index(name) for name in later)
    assert names[-1].startswith("transformers_")


def test_each_part_is_a_program_that_may_take_150_seconds_at_most() -> None:
    parts = list_parts()
    assert all(find_spec(f"benchmarks.{part.module}") for part in parts)
    assert max(part.timeout_s for part in parts) <= 150
    on_gpu = {name for name, benchmark in BENCHMARKS.items() if "cuda" in benchmark.devices}
    assert on_gpu == {*KERNELS, "decode_plan"}, "each kernel's benchmark is a part"


def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behaviours: dict[str, str], *flags: str, timeout_s: float = 60.0
) -> tuple[int, dict[str, Any]]:
    """Runs stand-ins for parts, by name; returns the exit code and the parts of the result file."""
    parts = [Part(name, "fake_part", (behaviour,), (), timeout_s) for name, behaviour in behaviours.items()]
    monkeypatch.setattr(run_gpu, "list_parts", lambda: parts)
    monkeypatch.setattr(run_gpu, "exit_on_signals", lambda: None)
    monkeypatch.setattr(run_gpu, "PACKAGE", "tests.benchmarks")
    code = run_gpu.main(["--device", "cpu", "--quick", "--results", str(tmp_path), *flags])
    return code, read_parts(tmp_path)


def read_parts(results: Path) -> dict[str, Any]:
    return json.loads((results / "gpu.json").read_text(encoding="utf-8"))["results"]["parts"]


def test_a_part_that_fails_dies_or_hangs_leaves_its_reason_and_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    behaviours = {"a": "fail", "b": "die", "c": "hang", "d": "forget", "e": "succeed"}
    code, parts = run(tmp_path, monkeypatch, behaviours, timeout_s=6.0)
    assert code == 1
    assert [(part["state"], part["reason"]) for part in parts.values()] == [
        ("failed", "exit code 1"),
        ("failed", "killed by SIGKILL"),
        ("failed", "stopped after 6 s"),
        ("failed", "it wrote no result"),
        ("ok", ""),
    ]
    assert parts["a"]["last_lines"][-1] == "ValueError: it cannot be done"
    assert parts["c"]["results"] == {"rows": [1]}, "what it had written before its time was over is kept"
    assert parts["e"]["results"] == {"rows": [1, 2]}
    assert parts["e"]["command"].startswith("python -m tests.benchmarks.fake_part --device cpu succeed")
    assert parts["e"]["commit"]
    assert "failed: c: stopped after 6 s" in capsys.readouterr().err


def test_what_the_budget_does_not_reach_is_named_and_earlier_results_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = {"a": "succeed", "b": "succeed"}
    assert run(tmp_path, monkeypatch, both, "--only", "a")[0] == 0
    code, parts = run(tmp_path, monkeypatch, both, "--budget-s", "1")
    assert code == 1
    assert {name: part["state"] for name, part in parts.items()} == {"a": "ok", "b": "not started"}
    code, parts = run(tmp_path, monkeypatch, both, "--only", "b")
    assert code == 0
    assert list(parts) == ["a", "b"]
    assert all(part["results"] == {"rows": [1, 2]} for part in parts.values())


def test_parts_that_are_done_may_be_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(tmp_path, monkeypatch, {"a": "succeed", "b": "fail"})[0] == 1
    before = read_parts(tmp_path)["a"]
    code, parts = run(tmp_path, monkeypatch, {"a": "fail", "b": "succeed"}, "--skip-done")
    assert code == 0
    assert parts["a"] == before
    assert parts["b"]["state"] == "ok"


def test_the_state_of_the_gpu_around_a_part_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = iter(({"clocks.sm": "1980 MHz"}, {"clocks.sm": "1200 MHz"}))
    monkeypatch.setattr(run_gpu, "ask_driver_state", lambda: next(clocks))
    parts = run(tmp_path, monkeypatch, {"a": "succeed"})[1]
    assert parts["a"]["gpu_state"] == {"before": {"clocks.sm": "1980 MHz"}, "after": {"clocks.sm": "1200 MHz"}}


def test_when_the_run_is_ended_the_file_says_what_ran(tmp_path: Path) -> None:
    code = (
        "import sys; from benchmarks import run_gpu; from benchmarks.gpu_parts import Part; "
        "run_gpu.PACKAGE = 'tests.benchmarks'; "
        "parts = [Part(name, 'fake_part', (what,), ()) for name, what in (('a', 'succeed'), ('b', 'hang'))]; "
        "run_gpu.list_parts = lambda: parts; "
        f"sys.exit(run_gpu.main(['--device', 'cpu', '--results', {str(tmp_path)!r}]))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout:
        for line in process.stdout:
            if line.startswith("hanging"):
                break
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 128 + signal.SIGTERM
    parts = read_parts(tmp_path)
    assert parts["a"]["state"] == "ok"
    assert (parts["b"]["state"], parts["b"]["results"]) == ("running", {"rows": [1]})


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (["--device", "cpu", "--quick"], "give a directory with --results"),
        (["--only", "nothing"], "no part's name begins so; --list shows them"),
    ],
)
def test_bad_usage_is_told(flags: list[str], error: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run_gpu.main(flags)
    assert error in capsys.readouterr().err


def test_real_parts_run_on_the_cpu_and_make_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_gpu, "exit_on_signals", lambda: None)
    flags = ["--device", "cpu", "--quick", "--results", str(tmp_path), "--only", "golden", "kernel_gelu"]
    assert run_gpu.main(flags) == 0
    assert set(read_parts(tmp_path)) == {"golden", "kernel_gelu"}
    page = make_gpu_page(tmp_path)
    assert "### gelu" in page
    assert "| shakespeare-gpt2 | float32 | 672 | default: 672 |" in page


def test_the_page_has_a_line_for_each_form_shape_and_variant(tmp_path: Path) -> None:
    facts = {"gpu": "a card", "torch": "2.11", "cuda": "13.0", "triton": "3.6.0"}
    kernels = [{"name": "attend", "count": 28, "us": 300.0}, {"name": "merge", "count": 28, "us": 100.0}]
    step = {"rows": 32, "ms": 2.5, "host_ms": 0.4, "floor_ms": 1.0, "times_floor": 2.0, "tok/s": 8000}
    on_gpu = {"gpu_ms": 2.0, "kernel_ms": 1.75, "kernels": kernels}
    times = {"p50_ms": 10.0, "p99_ms": 20.0}
    load = {
        "outcomes": {"ok": 4},
        "prompt_tokens": 512,
        "output_tokens": 512,
        "output_tokens_per_s": 9000.0,
        "latencies": {"time to first token": times, "inter-token": times},
    }
    line = '(90, "paged_decode", 2, 128, 2): {"BLOCK_N": 32, "num_warps": 2, "num_stages": 4},'
    results: dict[str, dict[str, object]] = {
        "kernel_rms_norm": {
            **facts,
            "limits": {"copy GB/s": 4000.0},
            "rows": [{"case": "64 tokens", "torch ms": 2.0, "Triton ms": 1.0, "torch GB/s": 1500, "Triton GB/s": 3000}],
        },
        "step_qwen3-0.6b": {**facts, "context": 512, "rows": [step | on_gpu]},
        "step_qwen3-0.6b_eager": {**facts, "context": 512, "rows": [step | {"ms": 5.0}]},
        "prefill_qwen3-0.6b": {
            "rows": [{"tokens": 8192, "ms": 60.0, "gpu_ms": 50.0, "host_ms": 1.5, "tok/s": 163_840.0, "MFU": 0.414}]
        },
        "http_qwen3-8b": {
            "compiled_at_load": 30,
            "compiled_under_load": [],
            "loads": [{"settings": {"concurrency": 16, "shared_prefix": 0}, "report": load}],
        },
        "offline_qwen3-0.6b": {"flags": [], "output_tok_per_s": 30_000.4, "fraction_of_floor": 0.83},
        "offline_qwen3-0.6b_eager": {"flags": ["--enforce-eager"], "output_tok_per_s": 9000, "fraction_of_floor": 0.25},
        "transformers_qwen3-0.6b": {"rows": [{"rows": 32, "ms": 31.0}], "offline": {"reason": "ValueError: no"}},
        "tuning_decode_qwen3-0.6b": {"table": [{"line": line, "times_best": 1.04, "times_best_of_that_in_use": None}]},
    }
    parts: dict[str, object] = {
        name: {"state": "ok", "reason": "", "command": f"python {name}", "commit": "abc", "results": found}
        for name, found in results.items()
    }
    parts["http_qwen3-0.6b"] = {"state": "failed", "reason": "stopped after 150 s"}
    (tmp_path / "gpu.json").write_text(json.dumps({"results": {"parts": parts}}), encoding="utf-8")
    lines = make_gpu_page(tmp_path).splitlines()
    assert "## a card" in lines
    assert "torch 2.11, CUDA 13.0, Triton 3.6.0 (`gpu.json`)." in lines
    assert "| 64 tokens | GB/s | 1,500 | 3,000 | 75% |" in lines
    assert "| qwen3-0.6b | 32 | 2.00 | 1.75 | 0.40 | 2.50 | 1.00 | 2.00 | 31.00 |" in lines
    assert "| qwen3-0.6b_eager | 32 |  |  | 0.40 | 5.00 | 1.00 | 2.00 |  |" in lines
    assert "| qwen3-0.6b | `attend` | 28 | 300.0 | 75% |" in lines
    assert "| qwen3-0.6b | 8,192 | 50.00 | 1.50 | 163,840 | 41% |" in lines
    assert "| 16 at a time | 128 + 128 | 9,000 | 10 / 20 | 10.0 / 20.0 |" in lines
    assert "Triton kernels compiled at load: 30, under load: 0." in lines
    assert "| qwen3-0.6b |  | 30,000 | 83% |" in lines
    assert "| qwen3-0.6b_eager | --enforce-eager | 9,000 | 25% |" in lines
    assert "| qwen3-0.6b | transformers' continuous batching | ValueError: no |  |" in lines
    assert f"| decode_qwen3-0.6b | `{line}` | 1.04 | failed |" in lines
    assert "| http_qwen3-0.6b | stopped after 150 s |" in lines
