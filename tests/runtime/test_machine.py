from pathlib import Path

import pytest

from runtime.machine import available_memory_bytes, computes_bfloat16, find_memory_limit


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


def write_group(group: Path, limit: int, *, is_unified: bool) -> None:
    """Makes a control group of the second or first version, which uses 1,000 bytes, 300 of them for files."""
    group.mkdir(parents=True)
    names = (
        ("max", "current", "inactive_file")
        if is_unified
        else ("limit_in_bytes", "usage_in_bytes", "total_inactive_file")
    )
    (group / f"memory.{names[0]}").write_text(f"{limit}\n", encoding="ascii")
    (group / f"memory.{names[1]}").write_text("1000\n", encoding="ascii")
    (group / "memory.stat").write_text(f"cache 0\n{names[2]} 300\n", encoding="ascii")


@pytest.mark.parametrize("is_unified", [True, False])
def test_the_groups_of_a_process_limit_its_memory(tmp_path: Path, is_unified: bool) -> None:
    memory_info, own_groups, root = tmp_path / "meminfo", tmp_path / "own", tmp_path / "cgroup"
    memory_info.write_text("MemAvailable:    4000 kB\n", encoding="ascii")
    controllers, mount = ("", root) if is_unified else ("cpu,memory", root / "memory")
    own_groups.write_text(f"3:pids:/other\n1:{controllers}:/service/sluice\n", encoding="ascii")
    write_group(root / "other", 1000, is_unified=is_unified)
    write_group(mount / "service" / "sluice", 5000, is_unified=is_unified)
    assert find_memory_limit(memory_info, root, own_groups) == (4300, str(mount / "service" / "sluice"))
    write_group(mount / "service" / "sluice" / "inner", 2000, is_unified=is_unified)
    assert find_memory_limit(memory_info, root, own_groups)[0] == 4300, "this group is another process's"
    for name in ("memory.max", "memory.current") if is_unified else ("memory.limit_in_bytes", "memory.usage_in_bytes"):
        (mount / "service" / name).write_text("1500\n", encoding="ascii")
    (mount / "service" / "memory.stat").write_text("", encoding="ascii")
    assert find_memory_limit(memory_info, root, own_groups)[0] == 0, "the group around it is full"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [("fpu avx512f avx512_bf16 sse", True), ("fpu amx_bf16", True), ("fpu avx512f avx512_bf16x", False), ("", False)],
)
def test_bfloat16_of_the_processor(tmp_path: Path, flags: str, expected: bool) -> None:
    cpu_info = tmp_path / "cpuinfo"
    cpu_info.write_text(f"processor\t: 0\nflags\t\t: {flags}\nbugs\t: avx512_bf16\n", encoding="utf-8")
    assert computes_bfloat16(cpu_info) is expected
    assert not computes_bfloat16(tmp_path / "absent")
