"""Fixtures that the tests of several packages share, and the environment of this process."""

import atexit
import collections
import fcntl
import functools
import gc
import json
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

LAST_DURATIONS = "sluice/durations"
"""The key in pytest's cache of the seconds, MIN_S or more, of each unit of work in the last run of all tests."""

DURATIONS = Path(__file__).with_name("durations.json")
"""These are used where no run has kept any: a copy of `.pytest_cache/v/sluice/durations`. Wrong ones only cost time."""

MIN_S = 1.0

NEW_RING_S = 20.0
"""For a file of real servers that has no duration, because it is new."""

SESSION_SERVERS = ("faulty_ring", "plain_ring", "restarted_ring", "twin_ring", "bard_ring", "image_ring")
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


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Long units of work start first, so that no worker is left alone with one at the end."""
    cache = getattr(config, "cache", None)  # may be switched off
    kept = cache and cache.get(LAST_DURATIONS, None)
    seconds: dict[str, float] = kept or json.loads(DURATIONS.read_text(encoding="utf-8"))
    items.sort(key=lambda item: -(seconds.get(unit_of(item.nodeid)) or guess_s(item.path)))


@functools.cache
def guess_s(path: Path) -> float:
    return NEW_RING_S if ANY_RING.search(path.read_text(encoding="utf-8")) else 0.0


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


durations: dict[str, float] = collections.defaultdict(float)
"""Seconds by unit of work, in this run."""


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    durations[unit_of(report.nodeid)] += report.duration


def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    cache = getattr(config, "cache", None)
    has_run_all = config.args_source is pytest.Config.ArgsSource.TESTPATHS and not (
        config.option.markexpr or config.option.keyword or session.shouldstop or session.shouldfail
    )
    if has_run_all and cache and not hasattr(config, "workerinput"):
        longest = sorted(durations.items(), key=lambda each: -each[1])
        cache.set(LAST_DURATIONS, {unit: round(seconds, 1) for unit, seconds in longest if seconds >= MIN_S})


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Like `--dist loadfile`, but one worker gets all files that share a session's server, which starts once."""
    # Imported here, because machines with a GPU may not have xdist.
    from xdist.scheduler import LoadFileScheduling

    class LoadServers(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return unit_of(nodeid)

    return LoadServers(config, log) if config.getvalue("dist") == "loadfile" else None


def unit_of(nodeid: str) -> str:
    """Returns what one worker runs as a whole: the file of the test, or the session's server that its file shares."""
    return unit_of_file(nodeid.partition("::")[0])


@functools.cache
def unit_of_file(path: str) -> str:
    text = (Path(__file__).parents[1] / path).read_text(encoding="utf-8") if path.startswith("tests/ring/") else ""
    return next((name for name in SESSION_SERVERS if name in text), path)


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
