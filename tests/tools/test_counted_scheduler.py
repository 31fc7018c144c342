from pathlib import Path

import pytest

from tools.counted_scheduler import note_compilations


def test_a_kernel_is_noted_in_a_line_and_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    knobs = pytest.importorskip("triton", reason="needs triton").knobs
    monkeypatch.setattr(knobs.runtime, "jit_cache_hook", None)
    file = tmp_path / "notes.txt"
    note_compilations(file)
    for text in ("attend[num_warps=4](*bf16,\n i32)", "merge[num_warps=1](*fp32)"):
        assert knobs.runtime.jit_cache_hook(repr=text, key="", fn=None, compile={}) is False
    noted = file.read_text(encoding="utf-8").splitlines()
    assert noted == ["attend[num_warps=4](*bf16, i32)", "merge[num_warps=1](*fp32)"]
