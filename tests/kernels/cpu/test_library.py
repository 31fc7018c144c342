import logging
import os
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

from kernels.cpu import build as build_module
from kernels.cpu import library as library_module
from kernels.cpu.arguments import STRUCTURES
from kernels.cpu.build import (
    BuildError,
    build,
    build_kept,
    can_keep,
    find_compiler,
    is_trusted,
    library_path,
    prebuilt_name,
)
from kernels.cpu.library import ISA_VARIABLE, find_kernel, find_parallel_region, load_kernels
from tests.kernels.c_library import built_library

ROOT = Path(__file__).resolve().parents[3]
FLOATS, BYTES = torch.zeros(1), torch.zeros(1, dtype=torch.uint8)


@pytest.fixture
def compiler() -> list[str]:
    try:
        return find_compiler()
    except BuildError as error:
        pytest.skip(str(error))


def take_compiler(path: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CC", str(path))
    monkeypatch.delenv(ISA_VARIABLE, raising=False)


@pytest.fixture(scope="module")
def old_script(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A compiler that builds the portable kernels alone, without optimisation, and once for all tests."""
    try:
        compiler = shlex.join(find_compiler())
    except BuildError as error:
        pytest.skip(str(error))
    kept = f'{tmp_path_factory.mktemp("objects")}/$(basename "$target")'
    compile_once = f'[ -e {kept} ] || {{ {compiler} "$@" -O0 && mv "$target" {kept}; }} && cp {kept} "$target"'
    return f"""case "$*" in *-mavx*) exit 1;; esac
for target; do :; done
case "$*" in *" -c "*) {compile_once};; *) exec {compiler} "$@" -O0;; esac"""


@pytest.fixture
def old_compiler(old_script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    take_compiler(tmp_path / "old-cc", old_script, monkeypatch)


@pytest.fixture(autouse=True)
def no_prebuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the library of an install would be: what was installed here is not looked at."""
    folder = tmp_path / "prebuilt"
    monkeypatch.setattr(library_module, "PREBUILT", folder)
    return folder


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "sluice"


@pytest.fixture
def kept(compiler: list[str], own_cache: Path) -> None:
    """An earlier start has built the library: it is in the cache."""
    built = built_library()
    own_cache.mkdir(parents=True, exist_ok=True)
    shutil.copy(built, library_path(compiler))


def load() -> tuple[str | None, list[str]]:
    """Loads the kernels; returns the instruction set and the reported phases. A phase that ends well was complete."""
    reports: list[tuple[str, float | None]] = []
    isa = load_kernels(lambda text, fraction: reports.append((text, fraction)))
    fractions = [fraction for _, fraction in reports if fraction is not None]
    assert fractions == sorted(fractions)
    assert not (isa and reports) or fractions[-1] == 1.0
    return isa, [text for text, fraction in reports if fraction is None]


@pytest.mark.usefixtures("old_compiler")
def test_they_are_built_once_and_kept(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    isa, reports = load()
    assert isa == "portable"
    assert reports == ["building the C kernels"]
    (library,) = own_cache.iterdir()
    assert load() == (isa, [])
    assert list(own_cache.iterdir()) == [library]
    assert find_kernel("gelu", FLOATS.dtype) is not None
    assert find_kernel("gelu", BYTES.dtype) is None
    monkeypatch.setenv(ISA_VARIABLE, "none")
    assert load() == (None, [])
    assert find_kernel("gelu", FLOATS.dtype) is None


def test_of_several_processes_one_builds_and_the_others_wait(
    old_script: str, own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = f'case "$*" in *-shared*) echo link >> {tmp_path}/links;; esac'
    take_compiler(tmp_path / "noted-cc", f"{script}\n{old_script}", monkeypatch)
    command = [sys.executable, "-m", "kernels.cpu.build"]
    started = [subprocess.Popen(command, cwd=ROOT) for _ in range(3)]
    assert [process.wait(timeout=120) for process in started] == [0, 0, 0]
    assert (tmp_path / "links").read_text(encoding="utf-8") == "link\n"
    assert [path.suffix for path in own_cache.iterdir()] == [".so"]


def test_the_name_depends_on_compiler_and_flags(compiler: list[str]) -> None:
    assert library_path(compiler) == library_path(compiler)
    assert library_path(compiler) != library_path(compiler, ["-g"])


def test_what_the_install_has_built_needs_neither_compiler_nor_cache(
    tmp_path: Path, no_prebuilt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = built_library()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(ISA_VARIABLE, raising=False)
    no_prebuilt.mkdir()
    shutil.copy(built, no_prebuilt / prebuilt_name())
    monkeypatch.setenv("CC", "/nonexistent")
    isa, reports = load()
    assert isa in build_module.built_isas()
    assert reports == []
    assert not (tmp_path / "cache").exists()


@pytest.mark.usefixtures("kept")
def test_an_install_takes_the_library_that_is_kept(
    compiler: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = library_path(compiler)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"kept")
    assert build_kept(compiler) == path
    copy = copy_for_setup(tmp_path / "checkout")
    subprocess.run(BUILD_PY, cwd=copy, check=True, capture_output=True, timeout=60)
    (installed,) = copy.glob("build/lib*/sluice/app/kernels/cpu/prebuilt/kernels-*.so")
    assert installed.read_bytes() == b"kept"


BUILD_PY = [sys.executable, "setup.py", "--quiet", "build_py"]


@pytest.mark.usefixtures("own_cache")
def test_a_compiler_that_fails_or_hangs_builds_no_package_without_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = copy_for_setup(tmp_path / "checkout")
    take_compiler(tmp_path / "cc", '[ "$1" = --version ] || { echo "no such header" >&2; exit 1; }', monkeypatch)
    done = subprocess.run(BUILD_PY, cwd=copy, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "no such header. Name another C compiler with CC, or set SLUICE_WITHOUT_KERNELS=1" in done.stderr
    monkeypatch.setenv("SLUICE_WITHOUT_KERNELS", "1")
    subprocess.run(BUILD_PY, cwd=copy, check=True, capture_output=True, timeout=60)
    take_compiler(tmp_path / "cc", 'case " $* " in *" -E "*|*" --version "*) ;; *) exec sleep 60;; esac', monkeypatch)
    with pytest.raises(BuildError, match=r"took more than 0\.1 s"):
        build([str(tmp_path / "cc")], tmp_path / "kernels.so", timeout_s=0.1)


def copy_for_setup(copy: Path) -> Path:
    """Returns a checkout of what setup.py needs to build the kernels."""
    for name in (
        "kernels/cpu/source",
        "kernels/arguments",
        "kernels/cpu/arguments.py",
        "kernels/cpu/build.py",
        "kernels/cpu/headers.py",
        "kernels/cpu/__init__.py",
        "kernels/__init__.py",
        "messages",
        "sluice",
    ):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).symlink_to(ROOT / name)
    for name in ("setup.py", "pyproject.toml", "README.md", "launch.py"):
        shutil.copy(ROOT / name, copy)
    return copy


def test_a_broken_library_of_the_install_is_built_again(no_prebuilt: Path, caplog: pytest.LogCaptureFixture) -> None:
    no_prebuilt.mkdir()
    (no_prebuilt / prebuilt_name()).write_bytes(b"not a library")
    with caplog.at_level(logging.WARNING):
        assert load()[0] in build_module.built_isas()
    assert "cannot be used" in caplog.text


@pytest.mark.usefixtures("own_cache")
def test_without_a_compiler_torch_serves_and_a_warning_reports_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", "/nonexistent")
    with caplog.at_level(logging.WARNING):
        assert load() == (None, [])
    assert "there is no C compiler" in caplog.text
    assert "several times as long" in caplog.text
    assert find_kernel("gelu", FLOATS.dtype) is None


def test_a_compiler_that_fails_leaves_nothing_behind(
    own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    script = '[ "$1" = --version ] || { echo "no such header" >&2; exit 1; }'
    take_compiler(tmp_path / "broken-cc", script, monkeypatch)
    with caplog.at_level(logging.WARNING):
        assert load() == (None, ["building the C kernels"])
    assert "no such header" in caplog.text
    assert list(own_cache.iterdir()) == []


@pytest.mark.usefixtures("own_cache", "old_compiler")
def test_a_compiler_that_does_not_know_an_instruction_set_builds_the_others() -> None:
    assert load() == ("portable", ["building the C kernels"])


def test_a_cache_that_cannot_be_written_is_an_error(compiler: list[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(BuildError, match="file"):
        build(compiler, tmp_path / "file" / "kernels.so")


@pytest.mark.usefixtures("old_compiler")
def test_where_nothing_can_be_kept_they_are_built_for_this_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    (tmp_path / "scratch").mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    with caplog.at_level(logging.WARNING):
        isa, reports = load()
    assert isa in build_module.built_isas()
    assert reports == ["building the C kernels"]
    assert "cannot be written" in caplog.text
    kernel = find_kernel("gelu", FLOATS.dtype)
    assert kernel is not None
    x, out = torch.ones(1, 3), torch.zeros(1, 3)
    kernel.run(kernel.arguments(x=x.data_ptr(), out=out.data_ptr(), num_tokens=1, size=3))
    assert out[0].tolist() == pytest.approx([0.8412] * 3, abs=1e-3)
    assert list((tmp_path / "scratch").iterdir()) == []


@pytest.mark.usefixtures("kept")
def test_an_instruction_set_that_is_not_there_is_notified(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(ISA_VARIABLE, "abacus")
    with caplog.at_level(logging.WARNING):
        assert load()[0] in build_module.built_isas()
    assert "SLUICE_CPU_ISA=abacus" in caplog.text


def test_torchs_threads_are_found() -> None:
    torch.ones(1 << 20).sum()
    if not torch.backends.openmp.is_available():
        pytest.skip("this torch has no OpenMP")
    assert find_parallel_region()


@pytest.mark.usefixtures("compiler")
def test_every_declared_kernel_is_there() -> None:
    isa = library_module.use_library(built_library())
    packed = {"pack_linear", "packed_linear"}
    loaded = library_module._kernels
    float32_alone = {"apply_bitmask", "pack_blocks", "sample"}
    for dtype, missing in ((torch.float32, {"fp8_linear", "rounded_linear"}), (torch.bfloat16, float32_alone)):
        if isa == "portable":
            missing = missing | packed
        if isa not in ("avx512", "amx"):
            missing = missing | {"fp8_linear", "rounded_linear"}
        assert {name for name, of in loaded if of == dtype} == set(STRUCTURES) - missing


def test_what_another_user_owns_is_not_loaded(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_cache.mkdir(parents=True)
    assert is_trusted(own_cache)
    assert can_keep()
    assert not is_trusted(own_cache / "absent")
    real = Path.stat

    def of_another_user(path: Path, **how: bool) -> os.stat_result:
        return os.stat_result((*real(path, **how)[:4], 4321, *real(path, **how)[5:]))

    monkeypatch.setattr(Path, "stat", of_another_user)
    assert not is_trusted(own_cache)
    assert not can_keep()
