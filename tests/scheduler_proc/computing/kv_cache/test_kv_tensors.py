import dataclasses
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from messages.errors import BootError
from scheduler_proc.computing.backends.cpu.forward_passes import CpuForwardPasses
from scheduler_proc.computing.hf_config import read_hf_config
from scheduler_proc.computing.kv_cache.kv_tensors import (
    GIB,
    KVTensors,
    allocate_cache,
    choose_num_pages,
    share_of_memory,
)
from scheduler_proc.computing.kv_cache.page_sizes import PageSizes, page_bytes
from scheduler_proc.computing.load_runner import load_runner
from scheduler_proc.computing.model.blocks.registry import BLOCKS
from scheduler_proc.computing.model.description import CachePart, LayerDescription, MixerDescription, ModelDescription
from scheduler_proc.computing.model.families.registry import find_family
from scheduler_proc.computing.placement import Placement
from scheduler_proc.computing.runner import Runner
from tests.checkpoints import build_checkpoint, make_config

CPU = Placement(torch.device("cpu"), torch.bfloat16)
PAGE_BYTES = 2 * 3 * 16 * 2 * 16 * 2


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    build_checkpoint(path, "llama-gqa-tied")
    return path


@pytest.fixture(scope="module")
def model(model_dir: Path) -> ModelDescription:
    hf_config = read_hf_config(model_dir)
    return find_family(hf_config).describe(hf_config, 96)


def test_page_bytes_are_those_of_the_tensors(model: ModelDescription) -> None:
    cache = allocate_cache(model, 5, 16, CPU)
    assert page_bytes(model, 16, CPU) == PAGE_BYTES
    assert sum(layer.keys.nbytes + layer.values.nbytes for (layer,) in cache.layers) == 5 * PAGE_BYTES
    assert [layer.keys.shape for (layer,) in cache.layers] == [(80, 2, 16)] * 3
    assert cache.num_pages == 5


def test_a_cache_of_codes_has_about_twice_the_pages(model_dir: Path, model: ModelDescription) -> None:
    placement = Placement(torch.device("cpu"), torch.bfloat16, kv_codes=torch.int8)
    code_bytes = page_bytes(model, 16, placement)
    assert code_bytes == PAGE_BYTES // 2 + 2 * 3 * 16 * 2 * 2
    cache = allocate_cache(model, 5, 16, placement)
    assert sum(tensor.nbytes for tensor in cache.tensors) == 5 * code_bytes
    assert {layer.keys.dtype for (layer,) in cache.layers} == {torch.int8}
    config = make_config(model_dir, num_pages=None, kv_cache_memory_gb=90 * PAGE_BYTES / GIB)
    assert choose_num_pages(config, PageSizes(PAGE_BYTES), GIB) == 90
    assert choose_num_pages(config, PageSizes(code_bytes), GIB) == 160


@dataclass(frozen=True, kw_only=True)
class Latent(MixerDescription):
    """One vector per token, which stands for keys and values."""

    size: int

    @property
    def out_size(self) -> int:
        return self.size

    @property
    def cache(self) -> tuple[CachePart, ...]:
        return (CachePart("latent", (self.size,)),)


class LatentBlock:
    @staticmethod
    def open_cache(tensors: Sequence[torch.Tensor], page_size: int) -> Any:
        return tensors, page_size


@pytest.mark.parametrize(("kv_codes", "token_bytes"), [(None, 576 * 2), (torch.int8, 576 + 2)])
def test_a_mixer_of_any_kind_declares_what_it_keeps(
    monkeypatch: pytest.MonkeyPatch, model: ModelDescription, kv_codes: torch.dtype | None, token_bytes: int
) -> None:
    """The cache, its size and its window pages follow from the parts; layers with attention have theirs."""
    monkeypatch.setitem(BLOCKS, Latent, LatentBlock)
    latent = Latent(size=576)
    layers = [LayerDescription(mixers=(mixer,)) for mixer in (latent, dataclasses.replace(latent, window=20), latent)]
    mixed = dataclasses.replace(model, layers=(*layers, model.layers[0]))
    placement = Placement(torch.device("cpu"), torch.bfloat16, kv_codes=kv_codes)
    own_bytes = page_bytes(dataclasses.replace(model, layers=model.layers[:1]), 16, placement)
    assert page_bytes(mixed, 16, placement) == 3 * 16 * token_bytes + own_bytes
    assert page_bytes(mixed, 16, placement, has_window=True) == 16 * token_bytes
    cache = allocate_cache(mixed, 5, 16, placement, num_window_pages=2)
    assert cache.num_bytes == 5 * (2 * 16 * token_bytes + own_bytes) + 2 * 16 * token_bytes
    found = [[tuple(tensor.shape) for tensor in tensors] for ((tensors, _),) in cache.layers[:3]]
    scales = [] if kv_codes is None else [(80,)]
    assert found == [[(80, 576), *scales], [(32, 576), *[(32,) for _ in scales]], [(80, 576), *scales]]
    assert cache.layers[3][0].keys.shape == (80, 2, 16)


@pytest.mark.parametrize(
    ("flags", "free_pages", "num_pages"),
    [
        ({}, 100, 100),
        ({}, 6, 6),
        ({"max_num_seqs": 4}, 100, 24),
        ({"max_num_seqs": 4, "max_model_len": 33}, 100, 12),
        ({"num_pages": 2000}, 100_000, 2000),
        ({"num_pages": 2000, "kv_cache_memory_gb": 0.001}, 100_000, 2000),
        ({"kv_cache_memory_gb": 1000.5 * PAGE_BYTES / GIB}, 100_000, 1000),
    ],
)
def test_the_number_of_pages(model_dir: Path, flags: dict[str, Any], free_pages: int, num_pages: int) -> None:
    config = make_config(model_dir, **({"num_pages": None} | flags))
    assert choose_num_pages(config, PageSizes(PAGE_BYTES), free_pages * PAGE_BYTES + 1) == num_pages


@pytest.mark.parametrize(
    ("flags", "free_pages", "origin"),
    [
        ({}, 5, "the memory that is free for it gives"),
        ({}, -3, "the memory that is free for it gives"),
        ({"num_pages": 5}, 100, "--num-pages 5 gives"),
        ({"kv_cache_memory_gb": 5.5 * PAGE_BYTES / GIB}, 100, "--kv-cache-memory-gb 3.1"),
    ],
)
def test_a_cache_too_small_for_one_full_request_is_refused(
    model_dir: Path, flags: dict[str, Any], free_pages: int, origin: str
) -> None:
    config = make_config(model_dir, **({"num_pages": None} | flags))
    with pytest.raises(BootError) as caught:
        choose_num_pages(config, PageSizes(PAGE_BYTES), free_pages * PAGE_BYTES)
    held = max(0, min(5, free_pages))
    for part in (origin, f"({held} pages, {held * 16} tokens)", "--max-model-len 96 needs", "(6 pages of 16 tokens)"):
        assert part in str(caught.value)
    for flag in ("--max-model-len", "--kv-cache-memory-gb", "--dtype", "--kv-cache-dtype"):
        assert flag in str(caught.value)


@pytest.mark.parametrize(
    ("flags", "free_pages", "fitting_len"),
    [
        ({}, 100, 1024),
        ({}, 36, 0),
        ({"max_model_len": 4096}, 100, 0),
        ({"num_pages": 100}, 100, 0),
        ({"kv_cache_memory_gb": 100.5 * PAGE_BYTES / GIB}, 100, 0),
    ],
)
def test_only_a_length_that_no_flag_has_set_is_shortened(
    model_dir: Path, flags: dict[str, Any], free_pages: int, fitting_len: int
) -> None:
    """An eighth is left for what other programs may have got before the next start."""
    config = make_config(model_dir, **({"num_pages": None, "max_model_len": None} | flags))
    config = replace(config, facts=replace(config.facts, max_model_len=4096))
    with pytest.raises(BootError) as caught:
        choose_num_pages(config, PageSizes(PAGE_BYTES), free_pages * PAGE_BYTES)
    assert caught.value.fitting_len == fitting_len


def test_the_error_comes_out_of_the_start(model_dir: Path) -> None:
    with pytest.raises(BootError, match="too small for one request of full length: --num-pages 2 gives"):
        load_runner(make_config(model_dir, num_pages=2), lambda text, fraction: None)


def test_a_cache_larger_than_the_free_memory_is_warned_of(model_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = make_config(model_dir, num_pages=50)
    with caplog.at_level(logging.WARNING):
        choose_num_pages(config, PageSizes(PAGE_BYTES), 50 * PAGE_BYTES)
        assert not caplog.records
        choose_num_pages(config, PageSizes(PAGE_BYTES), 49 * PAGE_BYTES)
    assert "more than is free" in caplog.text


def test_memory_that_is_not_provided_is_a_clear_error(model: ModelDescription) -> None:
    with pytest.raises(BootError, match=r"which cpu does not give: .*--kv-cache-memory-gb"):
        allocate_cache(model, 1 << 42, 16, CPU)


def test_the_default_has_room_for_one_long_request_where_memory_allows(model_dir: Path) -> None:
    config = make_config(model_dir)
    assert share_of_memory(config, 24 * GIB, GIB) == 4 * GIB
    assert share_of_memory(config, 24 * GIB, 5 * GIB) == 5 * GIB
    assert share_of_memory(config, 24 * GIB, 7 * GIB) == 6 * GIB


def cache_of(runner: Runner) -> KVTensors:
    assert isinstance(runner.forward_passes, CpuForwardPasses)
    return runner.forward_passes.cache


@pytest.mark.parametrize("variant", ["qwen3_5", "falcon-h1"])
def test_pages_and_states_share_the_memory_that_a_flag_gives(
    tmp_path: Path, variant: str, caplog: pytest.LogCaptureFixture
) -> None:
    build_checkpoint(tmp_path, variant)
    caplog.set_level(logging.INFO, "sluice.kv_cache")
    config = make_config(tmp_path, num_pages=None, kv_cache_memory_gb=0.01, max_num_seqs=8)
    runner = load_runner(config, lambda text, fraction: None)
    cache = cache_of(runner)
    states = [part for stack in cache.state_tensors for part in stack]
    num_state_bytes = sum(part.nbytes for part in states)
    num_bytes = num_state_bytes + sum(tensor.nbytes for tensor in cache.tensors)
    assert 0.98 * 0.01 * GIB < num_bytes <= 0.01 * GIB
    assert 0.25 < num_state_bytes / num_bytes < 0.4
    assert runner.states is not None
    assert {len(part) for part in states} == {runner.states.num_slots}
    assert f"are for {runner.states.num_slots} states of 0.0" in caplog.text


def test_a_draft_model_has_no_states(tmp_path: Path, model_dir: Path) -> None:
    build_checkpoint(tmp_path, "lfm2")
    with pytest.raises(BootError, match="the draft model has recurrent layers"):
        load_runner(make_config(tmp_path, draft_model=tmp_path), lambda text, fraction: None)


def test_a_model_without_attention_has_states_alone(tmp_path: Path) -> None:
    build_checkpoint(tmp_path, "mamba2")
    runner = load_runner(make_config(tmp_path, num_pages=None, kv_cache_memory_gb=0.01), lambda text, fraction: None)
    assert cache_of(runner).tensors == []
    assert runner.states is not None
    assert runner.states.pages_per_slot == 6, "the pages of a context"
    assert runner.num_pages == 256 * 6, "all that requests can use"
