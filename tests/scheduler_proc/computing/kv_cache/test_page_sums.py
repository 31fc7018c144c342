"""The KV cache of several ranks outlives them: an engine takes over the pages that are whole in all of them."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from scheduler_proc.computing.kv_cache.kv_memory import KVMemory
from tests.checkpoints import build_checkpoint, make_config
from tests.scheduler_proc.computing.kv_cache.test_kv_memory import wait_until_free
from tests.scheduler_proc.computing.ranks import ranks_of
from tests.scheduler_proc.computing.test_pipeline import many_cores, serve

__all__ = ["many_cores"]  # a fixture

PROMPTS = [list(range(3 + 50 * number, 43 + 50 * number)) for number in range(3)]
FLAGS: dict[str, Any] = {"num_pages": 32, "block_size": 8, "max_num_batched_tokens": 32}

Serve = Callable[..., tuple[list[list[int]], dict[str, float]]]


@pytest.fixture
def kv_files() -> Iterator[dict[int, Path]]:
    descriptors = [os.memfd_create("kv-cache") for _ in range(4)]
    yield {rank: Path(f"/proc/self/fd/{descriptor}") for rank, descriptor in enumerate(descriptors)}
    for descriptor in descriptors:
        os.close(descriptor)


@pytest.fixture
def serve_anew(tmp_path: Path, kv_files: dict[int, Path]) -> Serve:
    """Serves the prompts with an engine of its own; returns their tokens and its gauges."""

    def serve_anew(
        variant: str,
        num_ranks: int = 1,
        num_stages: int = 2,
        harm: Callable[[KVMemory], object] = lambda memory: None,
        **flags: Any,
    ) -> tuple[list[list[int]], dict[str, float]]:
        model = tmp_path / variant
        if not model.exists():
            build_checkpoint(model, variant)
        flags, name = FLAGS | flags, f"ranks{len(list(tmp_path.iterdir()))}"
        with ranks_of(model, num_ranks, tmp_path / name, num_stages, kv_files, **flags) as runners:
            memory = runners[1].page_memory
            found = serve(make_config(model, **flags), runners[0], PROMPTS)
            if memory is not None:
                harm(memory)
            del memory
            runners.clear()
        for path in kv_files.values():
            wait_until_free(path)
        return found

    return serve_anew


@pytest.mark.parametrize(("num_ranks", "num_stages"), [(1, 3), (2, 2)])
def test_an_engine_takes_over_the_pages_of_the_one_before(serve_anew: Serve, num_ranks: int, num_stages: int) -> None:
    expected, gauges = serve_anew("llama-gqa-tied", num_ranks, num_stages)
    assert gauges["pages_recovered"] == 0
    tokens, gauges = serve_anew("llama-gqa-tied", num_ranks, num_stages)
    assert tokens == expected
    assert gauges["pages_recovered"] == len(PROMPTS) * ((40 + 23) // 8)
    assert gauges["pages_dropped"] == 0


def test_a_page_that_is_damaged_in_one_rank_is_dropped_with_those_after_it(serve_anew: Serve) -> None:
    damaged: list[int] = []

    def damage(memory: KVMemory) -> None:
        seals = memory.notes[: 8 * memory.num_pages].cast("Q")
        damaged.append(next(page for page, seal in enumerate(seals) if seal))
        memory.damage(damaged[0])

    expected, _ = serve_anew("llama-gqa-tied", harm=damage)
    tokens, gauges = serve_anew("llama-gqa-tied")
    assert tokens == expected
    assert gauges["pages_dropped"] > 0
    assert gauges["pages_recovered"] > 0


def test_pages_of_an_older_engine_are_not_taken_over(serve_anew: Serve) -> None:
    """A machine that returns has whole pages, but of an engine that the scheduler's last one has replaced."""
    expected, _ = serve_anew("llama-gqa-tied", harm=lambda memory: setattr(memory, "engine", memory.engine - 1))
    tokens, gauges = serve_anew("llama-gqa-tied")
    assert tokens == expected
    assert gauges["pages_recovered"] == 0


def test_a_cache_of_another_size_begins_empty(serve_anew: Serve) -> None:
    expected, _ = serve_anew("llama-gqa-tied")
    tokens, gauges = serve_anew("llama-gqa-tied", num_pages=33)
    assert tokens == expected
    assert gauges["pages_recovered"] == 0


def test_window_pages_and_states_are_not_kept(serve_anew: Serve) -> None:
    expected, _ = serve_anew("qwen3_5")
    tokens, gauges = serve_anew("qwen3_5")
    assert tokens == expected
    assert gauges["pages_recovered"] + gauges["pages_dropped"] == 0
