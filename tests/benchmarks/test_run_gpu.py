"""The GPU's benchmarks, run on the CPU: each part starts, measures its smallest case and writes its result."""

import json
from pathlib import Path

import pytest

from benchmarks import bench_step, run_gpu
from benchmarks.offline_workload import offline_workload
from benchmarks.page.gpu import NOT_RUN, make_gpu_part


def test_the_offline_workload_is_the_one_that_others_publish() -> None:
    prompts, output_lens = offline_workload()
    assert (sum(map(len, prompts)), sum(output_lens)) == (142_827, 133_966)
    assert (prompts, output_lens) == offline_workload()


def test_parts_begin_with_the_limits_and_have_names_of_their_own() -> None:
    parts = list(run_gpu.list_parts(["qwen3-0.6b", "gpt2-124m"], has_peers=True))
    assert parts[0].name == "limits"
    assert len({part.name for part in parts}) == len(parts)
    names = {part.name for part in parts}
    assert {
        "rms_norm",
        "decode_plan",
        "step_qwen3-0.6b",
        "offline_gpt2-124m_no_overlap",
        "transformers_gpt2-124m",
    } <= names


def test_kernels_and_steps_run_on_the_cpu_and_make_a_page(tmp_path: Path) -> None:
    common = ["--device", "cpu", "--quick", "--results", str(tmp_path), "--shapes", "gpt2-124m"]
    assert run_gpu.main([*common, "--only", "gelu"]) == 0
    result = tmp_path / "gpu_step_gpt2-124m.json"
    flags = ["--shape", "gpt2-124m", "--device", "cpu", "--quick", "--cpu-threads", "1", "--context", "32"]
    assert bench_step.main([*flags, "--json", str(result)]) == 0
    (row,) = json.loads(result.read_text(encoding="utf-8"))["results"]["rows"]
    assert row["ms"] > 0
    page = make_gpu_part(tmp_path)
    assert "### gelu" in page
    assert "### Decode steps" in page
    assert "| gpt2-124m | 1 |" in page


def test_the_page_has_a_line_for_each_form_shape_and_variant(tmp_path: Path) -> None:
    facts = {"gpu": "a card", "torch": "2.11", "cuda": "13.0", "triton": "3.6.0"}
    step = {"rows": 16, "ms": 2.0, "floor_ms": 1.0, "times_floor": 2.0, "tok/s": 8000}
    results: dict[str, dict[str, object]] = {
        "rms_norm": {
            **facts,
            "limits": {"copy GB/s": 4000.0},
            "rows": [{"case": "64 tokens", "torch ms": 2.0, "Triton ms": 1.0, "torch GB/s": 1500, "Triton GB/s": 3000}],
        },
        "step_qwen3-0.6b": {**facts, "context": 512, "rows": [step]},
        "step_qwen3-0.6b_eager": {**facts, "context": 512, "rows": [step | {"ms": 5.0}]},
        "offline_qwen3-0.6b": {"flags": [], "output_tok_per_s": 30_000.4, "fraction_of_floor": 0.83},
        "offline_qwen3-0.6b_eager": {"flags": ["--enforce-eager"], "output_tok_per_s": 9000, "fraction_of_floor": 0.25},
        "transformers_qwen3-0.6b": {"rows": [{"rows": 16, "ms": 31.0}], "offline": {"reason": "ValueError: no"}},
    }
    for name, found in results.items():
        document = {"command": f"python {name}", "commit": "abc", "results": found}
        (tmp_path / f"gpu_{name}.json").write_text(json.dumps(document), encoding="utf-8")
    lines = make_gpu_part(tmp_path).splitlines()
    assert lines[2].startswith("a card, torch 2.11, CUDA 13.0, Triton 3.6.0.")
    assert "| 64 tokens | GB/s | 1,500 | 3,000 | 75% |" in lines
    assert "| qwen3-0.6b | 16 | 2.00 | 5.00 | 1.00 | 2.00 | 31.00 |" in lines
    assert "| qwen3-0.6b |  | 30,000 | 83% |" in lines
    assert "| qwen3-0.6b_eager | --enforce-eager | 9,000 | 25% |" in lines
    assert "| qwen3-0.6b | transformers' continuous batching | ValueError: no |  |" in lines


def test_numbers_of_a_cpu_are_not_kept_as_those_of_a_gpu() -> None:
    with pytest.raises(SystemExit):
        run_gpu.main(["--device", "cpu", "--quick"])


def test_without_results_the_page_says_so(tmp_path: Path) -> None:
    assert make_gpu_part(tmp_path) == f"## On a GPU\n\n{NOT_RUN}"


def test_a_part_that_fails_is_named_and_the_others_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    parts = [run_gpu.Part("broken", "no_such_benchmark", ()), run_gpu.Part("gelu", "kernels.bench_gelu", ())]
    monkeypatch.setattr(run_gpu, "list_parts", lambda shapes, has_peers: iter(parts))
    assert run_gpu.main(["--device", "cpu", "--quick", "--results", str(tmp_path)]) == 1
    assert "failed: broken" in capfd.readouterr().err
    assert (tmp_path / "gpu_gelu.json").exists()
