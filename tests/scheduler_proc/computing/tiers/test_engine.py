"""A model with tiers below its KV cache: the same tokens, on a CPU and a stand-in for a GPU, also after a restart."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from messages.errors import BootError
from messages.ring.requests import SamplingParams
from scheduler_proc.computing.load_runner import load_runner
from scheduler_proc.computing.tiers.tiered_pages import TieredPages
from scheduler_proc.deciding.pages.page_tiers import PageTiers
from scheduler_proc.offline import OfflineEngine, Output
from tests.checkpoints import build_checkpoint, make_config
from tests.scheduler_proc.computing.backends.cuda.late_device import LateDevice, late_backend

RNG = random.Random(5)
PROMPTS = [[RNG.randrange(3, 300) for _ in range(49)] for _ in range(5)]
PARAMS = [SamplingParams(6, temperature=0.7 * (index % 2), seed=index, ignore_eos=True) for index in range(5)]
SMALL = {"num_pages": 16, "block_size": 8, "max_model_len": 64, "kv_disk_gb": 0.01}
"""Room for two of the prompts."""


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    build_checkpoint(path, "llama-gqa-tied")
    return path


@pytest.fixture(scope="module")
def expected(model_dir: Path) -> list[list[int]]:
    return run(OfflineEngine(make_config(model_dir)))[0]


def run(engine: OfflineEngine) -> tuple[list[list[int]], list[int]]:
    """Returns the tokens of each prompt, and how many of each prompt were cached."""
    outputs: list[Output] = []
    for prompt, own in zip(PROMPTS, PARAMS, strict=True):
        outputs += engine.generate([prompt], [own])
        store = engine._runner.page_store
        assert store is None or store.settle(60.0)
    return [one.token_ids for one in outputs], [one.usage.cached_tokens for one in outputs]


@pytest.fixture(autouse=True)
def all_pages_are_worth_it(monkeypatch: pytest.MonkeyPatch):
    """On a busy machine the clock would decide."""
    monkeypatch.setattr(TieredPages, "estimate_s", lambda self, digests: 0.0)
    monkeypatch.setattr(PageTiers, "_page_compute_s", 1e9)


@pytest.fixture
def engines() -> Iterator[list[OfflineEngine]]:
    made: list[OfflineEngine] = []
    yield made
    for engine in made:
        engine.close()


Engines = list[OfflineEngine]


def test_a_restart_with_another_cache_size_finds_its_pages_on_disk(
    model_dir: Path, tmp_path: Path, expected: list[list[int]], engines: Engines
):
    engines.append(OfflineEngine(make_config(model_dir, **SMALL, kv_disk=str(tmp_path))))
    assert run(engines[0]) == (expected, [0] * 5)
    tokens, cached = run(engines[0])
    assert tokens == expected
    assert min(cached) == 48
    engines.pop().close()
    engines.append(OfflineEngine(make_config(model_dir, **SMALL | {"num_pages": 30}, kv_disk=str(tmp_path))))
    assert run(engines[0]) == (expected, [48] * 5)
    assert engines[0].gauges["disk_errors"] == 0


def test_codes_and_their_scales_come_back_and_never_as_numbers(model_dir: Path, tmp_path: Path, engines: Engines):
    codes = SMALL | {"kv_cache_dtype": "int8", "kv_disk": str(tmp_path)}
    engines.append(OfflineEngine(make_config(model_dir, **codes)))
    first = run(engines[0])[0]
    assert run(engines[0]) == (first, [48] * 5)
    engines.pop().close()
    engines.append(OfflineEngine(make_config(model_dir, **SMALL, kv_disk=str(tmp_path))))
    assert run(engines[0])[1] == [0] * 5


def test_damaged_files_give_the_same_tokens(
    model_dir: Path, tmp_path: Path, expected: list[list[int]], engines: Engines
):
    engines.append(OfflineEngine(make_config(model_dir, **SMALL, kv_disk=str(tmp_path))))
    run(engines[0])
    engines.pop().close()
    path = tmp_path / "engine-1" / "pages"
    data, chance = bytearray(path.read_bytes()), random.Random(2)
    for place in range(0, len(data), len(data) // 20):
        data[place : place + 40] = chance.randbytes(len(data[place : place + 40]))
    path.write_bytes(data)
    engines.append(OfflineEngine(make_config(model_dir, **SMALL, kv_disk=str(tmp_path))))
    assert run(engines[0])[0] == expected
    assert engines[0].gauges["disk_errors"] > 0


HYBRIDS = "qwen3_5", "mamba2"


@pytest.fixture(scope="module", params=HYBRIDS)
def hybrid(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param)
    build_checkpoint(path, request.param)
    return path


def test_checkpoints_come_back_from_the_disk_unless_they_are_damaged(hybrid: Path, tmp_path: Path, engines: Engines):
    expected = run(OfflineEngine(make_config(hybrid)))[0]
    flags = SMALL | {"num_pages": 12, "kv_disk": str(tmp_path)}
    engines.append(OfflineEngine(make_config(hybrid, **flags)))
    assert run(engines[0]) == (expected, [0] * 5)
    assert run(engines[0]) == (expected, [40] * 5), "prompts end where the next turn may replace tokens"
    assert engines[0].gauges["disk_hit_states"] > 0
    (before,) = engines[0].generate([PROMPTS[0]], [SamplingParams(8, temperature=0.0, ignore_eos=True)])
    turn = [*PROMPTS[0], *before.token_ids, 7, 8]
    own = SamplingParams(4, temperature=0.0, ignore_eos=True)
    (uncached,) = OfflineEngine(make_config(hybrid)).generate([turn], [own])
    engines.pop().close()
    engines.append(OfflineEngine(make_config(hybrid, **flags)))
    (again,) = engines[0].generate([turn], [own])
    assert (again.token_ids, again.usage.cached_tokens) == (uncached.token_ids, 56), "the last page of the answer"
    assert run(engines[0]) == (expected, [40] * 5)
    assert engines[0].gauges["disk_errors"] == 0
    engines.pop().close()
    path = tmp_path / "engine-1" / "states" / "pages"
    data = bytearray(path.read_bytes())
    for place in range(len(data) // 10, len(data), len(data) // 10):
        data[place] ^= 4
    path.write_bytes(data)
    engines.append(OfflineEngine(make_config(hybrid, **flags)))
    tokens, cached = run(engines[0])
    assert tokens == expected
    assert min(cached) < 40
    assert engines[0].gauges["disk_errors"] > 0


@pytest.mark.parametrize("has_disk", [False, True])
def test_a_gpu_has_the_hosts_memory_and_then_the_disk(
    model_dir: Path, tmp_path: Path, expected: list[list[int]], engines: Engines, has_disk: bool
):
    flags = {"kv_offload_gb": 0.00006, "kv_disk": str(tmp_path)} if has_disk else {"kv_offload_gb": 0.0005}
    with late_backend(LateDevice):
        engines.append(OfflineEngine(make_config(model_dir, max_num_seqs=4, **SMALL, **flags)))
    assert run(engines[0])[0] == expected
    tokens, cached = run(engines[0])
    assert tokens == expected
    gauges = engines[0].gauges
    assert gauges["host_pages"] > 0
    assert min(cached) == 48
    assert gauges["disk_hit_pages" if has_disk else "host_hit_pages"] > 0


def test_what_cannot_be_had_is_notified(model_dir: Path, tmp_path: Path):
    with pytest.raises(BootError, match=r"--kv-offload-gb: on a CPU .* raise --kv-cache-memory-gb instead"):
        load_runner(make_config(model_dir, kv_offload_gb=1.0), lambda text, fraction: None)
    (tmp_path / "file").touch()
    config = make_config(model_dir, **SMALL, kv_disk=str(tmp_path / "file"))
    runner = load_runner(config, lambda text, fraction: None)
    assert runner.page_store is None
    assert "no KV cache on disk (--kv-disk)" in runner.degraded
    assert "Not a directory" in runner.degraded
