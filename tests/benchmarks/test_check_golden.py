"""The check of recorded tokens: it passes on the CPU, and reports other tokens and engine errors."""

import json
import shutil
from pathlib import Path

import pytest

from benchmarks import check_golden
from benchmarks.check_golden import ROOT, count_same, main

ON_CPU = ("--device", "cpu", "--cpu-threads", "1")
BUNDLED = ROOT / "assets" / "shakespeare-gpt2"


@pytest.fixture
def changed(tmp_path: Path) -> Path:
    """The bundled model, with the last recorded token of its first prompt another one, and no other prompts."""
    model = tmp_path / "changed"
    shutil.copytree(BUNDLED, model)
    golden = json.loads((model / "golden.json").read_text(encoding="utf-8"))
    golden["cases"] = golden["cases"][:1]
    golden["cases"][0]["output_ids"][-1] ^= 1
    (model / "golden.json").write_text(json.dumps(golden), encoding="utf-8")
    return model


def read_findings(file: Path) -> list[dict[str, object]]:
    return json.loads(file.read_text(encoding="utf-8"))["results"]["findings"]


def test_the_bundled_model_gives_its_recorded_tokens(tmp_path: Path) -> None:
    file = tmp_path / "golden.json"
    assert main([*ON_CPU, "--models", str(BUNDLED), "--quick", "--json", str(file)]) == 0
    (found,) = read_findings(file)
    assert found["num_same_tokens"] == found["num_tokens"] == 7 * 96
    assert (found["dtype"], found["form"], found["error"]) == ("float32", "default", "")


def test_another_token_fails_in_float32_and_is_counted_in_every_form(
    tmp_path: Path, changed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bfloat16 it decides nothing."""
    file = tmp_path / "golden.json"
    flags = [*ON_CPU, "--models", str(changed), "--json", str(file)]
    assert main(flags) == 1
    findings = read_findings(file)
    forms = [(found["dtype"], found["form"]) for found in findings]
    assert forms == [("float32", form) for form in ("default", "no overlap", "eager")] + [("bfloat16", "default")]
    assert {(found["num_same_tokens"], found["num_same_cases"]) for found in findings[:3]} == {(95, 0)}
    monkeypatch.setattr(check_golden, "DTYPES", {"bfloat16": ("default",)})
    assert main(flags) == 0


def test_a_model_that_does_not_run_is_told_and_fails(tmp_path: Path, changed: Path) -> None:
    (changed / "model.safetensors").unlink()
    file = tmp_path / "golden.json"
    assert main([*ON_CPU, "--models", str(changed), "--quick", "--json", str(file)]) == 1
    (found,) = read_findings(file)
    assert str(found["error"]).startswith("BootError: ")


def test_a_gpu_that_fails_ends_no_more_than_its_case(
    tmp_path: Path, changed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier findings stay in the result, and every case has its reason."""

    def fail(config: object) -> None:
        raise SystemExit("the GPU has failed: an illegal memory access")

    monkeypatch.setattr(check_golden, "OfflineEngine", fail)
    file = tmp_path / "golden.json"
    assert main([*ON_CPU, "--models", str(changed), "--json", str(file)]) == 1
    assert {found["error"] for found in read_findings(file)} == {
        "SystemExit: the GPU has failed: an illegal memory access"
    }
    assert len(read_findings(file)) == 4


def test_without_models_it_says_where_it_looked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ON_CPU, "--models", str(tmp_path)]) == 2
    assert "hold no model with a golden.json" in capsys.readouterr().err


def test_tokens_are_counted_up_to_the_first_other_one() -> None:
    assert [count_same(ours, [1, 2, 3]) for ours in ([1, 2, 3], [1, 9, 3], [9], [1, 2], [])] == [3, 1, 0, 2, 0]
