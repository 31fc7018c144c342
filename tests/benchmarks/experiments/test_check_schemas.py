import json
from pathlib import Path

from benchmarks.experiments.structured_output_0044.check_schemas import as_schema, main, validate

MODEL_DIR = Path(__file__).resolve().parents[3] / "assets" / "shakespeare-gpt2"


def test_schemas_of_every_source_are_checked(tmp_path: Path) -> None:
    good = {"type": "object", "properties": {"a": {"enum": [1, "x"]}}, "required": ["a"], "additionalProperties": False}
    function = {"name": "f", "parameters": {"type": "dict", "properties": {"b": {"type": "float"}}, "required": ["b"]}}
    (tmp_path / "good.json").write_text(json.dumps(good))
    (tmp_path / "suite.json").write_text(json.dumps([{"schema": {"not": {}}, "tests": []}]))
    (tmp_path / "tools.json").write_text("\n".join([json.dumps({"id": "1", "function": [function]})] * 2))
    result_file = tmp_path / "out" / "result.json"
    arguments = ["--tokenizer", str(MODEL_DIR), "--vocab-size", "3072", "--json", str(result_file), str(tmp_path)]
    assert main(arguments) == 0
    results = json.loads(result_file.read_text())["results"]
    assert results["num_schemas"] == 4
    assert results["names"]["refused"] == ["suite.json 0"]
    assert "good.json" in results["names"]["valid"]


def test_functions_become_schemas() -> None:
    assert as_schema({"type": "dict", "properties": {"type": {"type": "tuple"}}}) == {
        "type": "object",
        "properties": {"type": {"type": "array"}},
    }


def test_what_is_not_valid_is_told() -> None:
    assert validate('{"a": 1}', {"type": "object"}) == ""
    assert "ValidationError" in validate("5", {"type": "object"})
    assert "JSONDecodeError" in validate("{", {"type": "object"})
