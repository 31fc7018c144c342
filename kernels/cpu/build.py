"""Builds the C kernels with the machine's compiler, once: while the package is installed, or else at the first start.

A start keeps the result in the user's cache directory.
"""

import contextlib
import fcntl
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from kernels.cpu.headers import HEADERS, write_headers

SOURCE = Path(__file__).parent / "source"
PREBUILT = Path(__file__).parent / "prebuilt"
COMPILERS = ("cc", "gcc", "clang")
COMPILE_TIMEOUT_S = 300.0
INSTALL_TIMEOUT_S = 3600.0
"""During an installation nothing waits for a server."""

WITHOUT = "SLUICE_WITHOUT_KERNELS"
"""The environment variable that makes an installation build no kernels."""

FLAGS = [
    *("-std=gnu11", "-O3", "-fPIC", "-fvisibility=hidden", "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math"),
    *("-Wall", "-Wextra", "-Wno-unknown-pragmas", "-Wno-psabi"),
]
AVX2 = ["-mavx2", "-mfma", "-mf16c"]
AVX512 = [*AVX2, *(f"-mavx512{part}" for part in ("f", "bw", "vl", "dq", "bf16", "vnni")), "-mprefer-vector-width=512"]
AMX = [*AVX512, *(f"-mamx-{part}" for part in ("tile", "bf16", "int8"))]
ISA_FLAGS = {"portable": [], "avx2": AVX2, "avx512": AVX512, "amx": AMX}
"""By the instruction set that kernels are built for; `portable` is the compiler's default."""

RUNTIME_UNITS = ("runtime", "crew", "team")
"""The units that exist once, for all instruction sets."""


class BuildError(Exception):
    """The kernels cannot be built here. The text gives the reason in a few lines at most."""


class NoCompilerError(BuildError):
    """There is no C compiler."""


def built_isas() -> list[str]:
    """Returns the instruction sets of this processor architecture, the best first."""
    return ["amx", "avx512", "avx2", "portable"] if platform.machine() in ("x86_64", "AMD64") else ["portable"]


def cache_dir() -> Path:
    """Returns the directory for built libraries; it need not exist. Without a home directory it cannot be created."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sluice"
    except RuntimeError:
        return Path(os.devnull) / "sluice"


def can_keep() -> bool:
    """True if a library can be kept for the next start; creates `cache_dir`."""
    try:
        cache_dir().mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return is_trusted(cache_dir()) and os.access(cache_dir(), os.W_OK | os.X_OK)


def is_trusted(path: Path) -> bool:
    """True if `path` exists and belongs to this user or root: other users may be able to write to XDG_CACHE_HOME."""
    try:
        return path.stat().st_uid in (os.getuid(), 0)
    except OSError:
        return False


def find_compiler() -> list[str]:
    """Returns the command of a C compiler: $CC, else the first of cc, gcc and clang. Raises `BuildError`."""
    if named := os.environ.get("CC"):
        return shlex.split(named)
    for name in COMPILERS:
        if path := shutil.which(name):
            return [path]
    raise NoCompilerError(f"there is no C compiler ({', '.join(COMPILERS)})")


def prebuilt_name() -> str:
    """Returns the name of a library of these sources in `PREBUILT`, whatever the compiler."""
    return f"kernels-{_source_key().hexdigest()[:24]}.so"


def library_path(compiler: Sequence[str], extra_flags: Sequence[str] = ()) -> Path:
    """Returns the path of the library of these sources, compiler and flags, built or not. Raises `BuildError`."""
    key = _source_key()
    key.update(repr((list(compiler), _run([*compiler, "--version"]), list(extra_flags))).encode())
    return cache_dir() / f"kernels-{key.hexdigest()[:24]}.so"


def build(
    compiler: Sequence[str],
    target: Path,
    extra_flags: Sequence[str] = (),
    report_progress: Callable[[float], None] = lambda fraction: None,
    timeout_s: float = COMPILE_TIMEOUT_S,
) -> None:
    """Builds the library at `target`, which appears in one atomic move. Raises `BuildError`, also after `timeout_s`.

    `report_progress` is called with the fraction of the compilation that is done, up to 1.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix="build-") as scratch:
            objects = _compile(compiler, Path(scratch), extra_flags, report_progress, timeout_s)
            library = Path(scratch) / "kernels.so"
            _run([*compiler, "-shared", *extra_flags, "-o", str(library), *objects, "-lm"])
            library.replace(target)
    except OSError as error:
        raise BuildError(f"{target.parent}: {error.strerror or error}") from None


def build_once(path: Path, build_it: Callable[[], None]) -> None:
    """Calls `build_it` if there is no library at `path`, and none after a process that builds it now has ended.

    Raises `BuildError`.
    """
    if is_trusted(path):
        return
    lock_file = path.with_suffix(".lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with lock_file.open("w") as lock:
            with contextlib.suppress(OSError):  # of a file system without locks
                fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                if not is_trusted(path):
                    build_it()
            finally:
                lock_file.unlink(missing_ok=True)
    except OSError as error:
        raise BuildError(f"{path.parent}: {error.strerror or error}") from None


def build_kept(compiler: Sequence[str], timeout_s: float = COMPILE_TIMEOUT_S) -> Path:
    """Returns the kept library, after building it if it does not exist. Raises `BuildError`."""
    path = library_path(compiler)
    build_once(path, lambda: build(compiler, path, timeout_s=timeout_s))
    return path


def _source_key() -> "hashlib._Hash":
    key = hashlib.sha256(repr((platform.machine(), FLAGS, ISA_FLAGS, HEADERS)).encode())
    for source in sorted(SOURCE.iterdir()):
        key.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return key


def _compile(
    compiler: Sequence[str],
    scratch: Path,
    extra_flags: Sequence[str],
    report_progress: Callable[[float], None],
    timeout_s: float,
) -> list[str]:
    """Compiles in parallel for the instruction sets that the compiler supports; returns the object files."""
    include = write_headers(scratch)
    units = [(name, ["-c", str(SOURCE / f"{name}.c")]) for name in RUNTIME_UNITS]
    units += [
        (isa, [*ISA_FLAGS[isa], f"-DISA={isa}", "-c", str(SOURCE / "kernels.c")])
        for isa in reversed(built_isas())
        if _knows(compiler, ISA_FLAGS[isa])
    ]
    objects = [str(scratch / f"{name}.o") for name, _ in units]
    commands = [
        [*compiler, *FLAGS, *include, *extra_flags, *arguments, "-o", target]
        for (_, arguments), target in zip(units, objects, strict=True)
    ]
    running = [
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) for command in commands
    ]
    end_s = time.monotonic() + timeout_s
    try:
        for num_done, (command, compiling) in enumerate(zip(commands, running, strict=True), start=1):
            _, messages = compiling.communicate(timeout=max(0.0, end_s - time.monotonic()))
            if compiling.returncode != 0:
                raise BuildError(f"{command[0]} failed: {_first_lines(messages)}")
            report_progress(num_done / len(commands))
    except subprocess.TimeoutExpired:
        raise BuildError(f"{compiler[0]} took more than {timeout_s:g} s") from None
    finally:
        for compiling in running:
            compiling.kill()
            compiling.wait()
            assert compiling.stderr is not None
            compiling.stderr.close()
    return objects


def _knows(compiler: Sequence[str], flags: Sequence[str]) -> bool:
    """True if the compiler accepts these flags; those for tiles came with GCC 11."""
    try:
        _run([*compiler, *flags, "-E", "-x", "c", os.devnull])
    except BuildError:
        return False
    return True


def _run(command: Sequence[str]) -> str:
    """Returns the command's output. Raises `BuildError` if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{command[0]} cannot be run: {error}") from None
    if done.returncode != 0:
        raise BuildError(f"{command[0]} failed: {_first_lines(done.stderr)}")
    return done.stdout


def _first_lines(messages: str) -> str:
    return "; ".join(messages.strip().splitlines()[:3]) or "it printed nothing"


if __name__ == "__main__":
    build_kept(find_compiler())
