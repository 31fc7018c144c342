"""A draft model next to the model: what it shares, what it costs, and that its absence costs nothing."""

from pathlib import Path
from typing import Any

import pytest

from messages.errors import BootError
from scheduler_proc.computing.load_runner import load_runner, measure_models
from scheduler_proc.deciding_half import make_scheduler
from tests.checkpoints import build_checkpoint, make_config

GB = 0.002


def no_report(text: str, fraction: float | None) -> None:
    pass


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    build_checkpoint(path, "llama-gqa-tied")
    return path


def test_a_page_takes_the_memory_of_both_and_without_a_draft_model_of_one(model_dir: Path) -> None:
    flags: dict[str, Any] = {"num_pages": None, "kv_cache_memory_gb": GB}
    config = make_config(model_dir, **flags)
    alone = load_runner(config, no_report)
    assert alone.draft_runner is None
    assert make_scheduler(config, alone)._draft_planner is None
    both = load_runner(make_config(model_dir, draft_model=model_dir, **flags), no_report)
    assert both.num_pages == alone.num_pages // 2
    assert both.draft_runner is not None
    assert both.draft_runner.num_pages == both.num_pages
    passes = (both.forward_passes, both.draft_runner.forward_passes)
    weight_bytes, sizes, *_ = measure_models(make_config(model_dir, draft_model=model_dir, **flags))
    assert weight_bytes > 1.9 * measure_models(config)[0]
    assert sizes.num_bytes(both.num_pages) == sum(each.cache.num_bytes for each in passes)


def test_a_draft_model_as_large_as_the_model_is_warned_of(model_dir: Path, tmp_path: Path, caplog) -> None:
    build_checkpoint(tmp_path, "llama-gqa-tied", num_hidden_layers=1)
    load_runner(make_config(model_dir, draft_model=tmp_path), no_report)
    assert "take a much smaller one" not in caplog.text
    load_runner(make_config(model_dir, draft_model=model_dir), no_report)
    assert "take a much smaller one" in caplog.text


def test_a_draft_model_that_cannot_be_loaded_ends_the_start(model_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((model_dir / "config.json").read_text())
    with pytest.raises(BootError, match="no weights"):
        load_runner(make_config(model_dir, draft_model=tmp_path), no_report)
