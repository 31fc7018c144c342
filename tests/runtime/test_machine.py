from pathlib import Path

import pytest

from runtime.machine import available_memory_bytes, computes_bfloat16


def test_available_memory(tmp_path: Path) -> None:
    memory_info, cgroup = tmp_path / "meminfo", tmp_path / "cgroup"
    memory_info.write_text("MemTotal:  9000 kB\nMemAvailable:    4000 kB\n", encoding="ascii")
    assert available_memory_bytes(memory_info, cgroup) == 4000 * 1024
    cgroup.mkdir()
    (cgroup / "memory.max").write_text("max\n", encoding="ascii")
    (cgroup / "memory.current").write_text("1000\n", encoding="ascii")
    assert available_memory_bytes(memory_info, cgroup) == 4000 * 1024
    (cgroup / "memory.max").write_text("3000\n", encoding="ascii")
    (cgroup / "memory.stat").write_text("anon 700\n", encoding="ascii")
    assert available_memory_bytes(memory_info, cgroup) == 2000
    (cgroup / "memory.stat").write_text("anon 700\nfile 300\ninactive_file 250\n", encoding="ascii")
    assert available_memory_bytes(memory_info, cgroup) == 2250, "a model file that was read can be dropped"
    assert available_memory_bytes(tmp_path / "absent", tmp_path / "absent") > 0


@pytest.mark.parametrize(
    ("flags", "expected"),
    [("fpu avx512f avx512_bf16 sse", True), ("fpu amx_bf16", True), ("fpu avx512f avx512_bf16x", False), ("", False)],
)
def test_bfloat16_of_the_processor(tmp_path: Path, flags: str, expected: bool) -> None:
    cpu_info = tmp_path / "cpuinfo"
    cpu_info.write_text(f"processor\t: 0\nflags\t\t: {flags}\nbugs\t: avx512_bf16\n", encoding="utf-8")
    assert computes_bfloat16(cpu_info) is expected
    assert not computes_bfloat16(tmp_path / "absent")
