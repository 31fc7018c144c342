"""Fixtures that the tests of several packages share, and the environment of this process."""

import atexit
import fcntl
import functools
import gc
import os
import re
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from scheduler_proc.computing import limit_spinning
from tests.skips import refuse_other_reasons

SHARED = Path(__file__).resolve().parents[2] / "shared"
HAS_CUDA_DRIVER = any(Path(device).exists() for device in ("/dev/nvidiactl", "/dev/dxg"))

if not HAS_CUDA_DRIVER:
    # Triton reads this variable when its library of functions is imported, which any package may do.
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Otherwise each parallel region may wait up to 20 ms for other programs on a busy machine.
limit_spinning(os.environ)

# httpx and openai read all CA certificates for each client, which takes 30 ms and which no test needs.
os.environ.pop("SSL_CERT_FILE", None)
os.environ["SSL_CERT_DIR"] = os.devnull

# Imports and test collection create objects that live to the end. Traversing them took a third of the time of test
# collection, and each garbage collection in a test would traverse them again.
gc.disable()

LONG_FILES = (
    *("ring/test_frontend_workers.py", "ring/test_restart.py", "ring/test_poison.py", "ring/test_grammars.py"),
    *("kernels/gpu/test_compile.py", "ring/test_browser.py", "kernels/cpu/test_sanitizers.py"),
    *("ring/test_standby.py", "supervisor/test_standby.py", "ring/test_engines.py", "ring/test_ranks.py"),
    *("ring/test_remote_engines.py", "ring/test_speculation.py", "ring/test_operation.py", "ring/test_timelines.py"),
    *("scheduler_proc/test_greedy_tokens.py", "supervisor/admin/test_handover.py", "ring/test_soak.py"),
    *("supervisor/test_supervisor.py", "supervisor/test_replacement.py", "ring/test_openapi.py", "ring/test_golden.py"),
    *("scheduler_proc/test_overlap_soak.py", "frontend/requests/test_hold.py", "test_launch.py"),
    *("ring/test_chaos.py", "benchmarks/test_bench_recovery.py"),
    *("kernels/operations/test_packed_linear.py", "detokenizer_proc/test_decoders.py"),
    *("scheduler_proc/computing/backends/cuda/test_forward_passes.py", "kernels/gpu/test_paged_decode.py"),
    *("kernels/gpu/test_draw_filtered.py", "scheduler_proc/deciding/test_soak.py", "test_gpu_tests.py"),
    *("frontend/recovery/test_continuation.py", "frontend/test_process.py", "supervisor/model/test_fetch.py"),
    *("supervisor/cli/test_operate.py", "supervisor/admin/test_scaling.py", "benchmarks/test_run_gpu.py"),
    *("frontend/http/test_h11_agreement.py", "benchmarks/test_bench_footprint.py", "ring/test_tool_calls.py"),
    *("ring/test_starts.py", "ring/test_agents.py", "ring/test_token_runs.py", "supervisor/test_ranks.py"),
    *("ring/test_kv_tiers.py", "kernels/gpu/test_sample.py", "scheduler_proc/computing/test_generation.py"),
    *("scheduler_proc/test_mixed_requests.py", "benchmarks/experiments/test_bench_quantization.py"),
)
"""These start first, so that no worker is left alone with one at the end. A wrong order only costs time."""

SESSION_SERVERS = ("faulty_ring", "plain_ring", "restarted_ring", "twin_ring", "bard_ring")
"""Fixtures of tests/ring/conftest.py that several files share."""

ANY_RING = re.compile(r"mark\.ring\b")
"""Matches in every file with a test that starts a real server."""

ALL_RING = re.compile(r"^pytestmark = .*mark\.ring\b", re.MULTILINE)
"""Matches in files of which all tests do."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m ring` or `-m "not ring"`, files and conftests without a test to run are not imported.

    Each worker imports everything that is collected, which takes longer than most tests.
    """
    files = [collection_path] if collection_path.suffix == ".py" else collection_path.rglob("test_*.py")
    texts = (file.read_text(encoding="utf-8") for file in files)
    if config.option.markexpr == "ring":
        return not any(map(ANY_RING.search, texts)) or None
    if config.option.markexpr == "not ring":
        return all(map(ALL_RING.search, texts)) or None
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rank = {Path(__file__).parent / name: index for index, name in enumerate(LONG_FILES)}
    assert all(path.exists() for path in rank), [str(path) for path in rank if not path.exists()]
    items.sort(key=lambda item: rank.get(item.path, len(rank)))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Makes the first of several workers compile a file and its imports while the others wait, and then read them.

    Otherwise each would compile everything in a new checkout, which takes longer than to import it.
    """
    if not isinstance(collector, pytest.Module):
        return (yield)
    with collector.path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(file, fcntl.LOCK_SH)
        report = yield
    refuse_other_reasons(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    refuse_other_reasons(report)
    return report


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Like `--dist loadfile`, but one worker gets all files that share a session's server, which starts once."""
    # Imported here, because machines with a GPU may not have xdist.
    from xdist.scheduler import LoadFileScheduling

    class LoadServers(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path = nodeid.partition("::")[0]
            return session_server(path) or path

    return LoadServers(config, log) if config.getvalue("dist") == "loadfile" else None


@functools.cache
def session_server(path: str) -> str | None:
    """Returns the fixture of tests/ring/conftest.py that the file at `path`, relative to the root, uses."""
    text = (Path(__file__).parents[1] / path).read_text(encoding="utf-8") if path.startswith("tests/ring/") else ""
    return next((name for name in SESSION_SERVERS if name in text), None)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()
    atexit.register(gc.unfreeze)  # libraries check for leaks at exit


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The read-only material next to the checkout: real models, tokenizers, prompts and traces."""
    if not SHARED.is_dir():
        pytest.skip("needs ../shared (real models, tokenizers, prompts) beside the checkout")
    return SHARED
