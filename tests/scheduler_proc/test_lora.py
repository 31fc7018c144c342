"""LoRA through both halves: each row has the tokens of the model into which its adapter is merged."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from messages.errors import BootError
from messages.ring.adapters import Adapter
from messages.ring.requests import SamplingParams
from runtime.adapter_files import read_digest
from runtime.adapter_table import write_table
from scheduler_proc.offline import OfflineEngine, Output
from tests.checkpoints import make_config
from tests.lora_adapters import write_adapter, write_merged
from tests.scheduler_proc.computing.backends.cuda.late_device import LateDevice, late_backend
from tests.tiny_llama import write_tiny_llama

PROMPTS = [[5, 6, 7], list(range(3, 60)), list(range(3, 50)), [9] * 20]
NUM_ADAPTERS = 3


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lora") / "model"
    path.mkdir()
    write_tiny_llama(path)
    return path


@pytest.fixture(scope="module")
def adapters(model_dir: Path) -> list[Adapter]:
    paths = [write_adapter(model_dir.parent / f"adapter-{seed}", model_dir, seed) for seed in range(NUM_ADAPTERS)]
    return [Adapter(f"a{index}", path, read_digest(path)) for index, path in enumerate(paths)]


def params_of(adapter: Adapter | None, max_tokens: int = 16, **params: Any) -> SamplingParams:
    salt = "" if adapter is None else adapter.digest
    params = {"temperature": 0.0, "ignore_eos": True, "adapter": adapter, "cache_salt": salt, **params}
    return SamplingParams(max_tokens, **params)


@pytest.fixture(scope="module")
def expected(model_dir: Path, adapters: list[Adapter]) -> list[list[list[int]]]:
    """The tokens of each prompt: of each merged model, and last of the model itself."""
    folders = [model_dir.parent / f"merged-{index}" for index in range(NUM_ADAPTERS)]
    for folder, adapter in zip(folders, adapters, strict=True):
        write_merged(folder, model_dir, adapter.path)
    engines = [OfflineEngine(make_config(folder)) for folder in (*folders, model_dir)]
    outputs = [tokens_of(engine.generate(PROMPTS, [params_of(None)] * len(PROMPTS))) for engine in engines]
    assert len({str(output) for output in outputs}) == NUM_ADAPTERS + 1
    return outputs


def tokens_of(outputs: Sequence[Output]) -> list[list[int]]:
    assert all(output.error is None for output in outputs), outputs
    return [output.token_ids for output in outputs]


def generate(engine: OfflineEngine, adapters: Sequence[Adapter | None]) -> list[list[list[int]]]:
    """Generates from all prompts with each of `adapters`, at once."""
    cases = [(prompt, params_of(adapter)) for adapter in adapters for prompt in PROMPTS]
    tokens = tokens_of(engine.generate([prompt for prompt, _ in cases], [params for _, params in cases]))
    return [tokens[first : first + len(PROMPTS)] for first in range(0, len(tokens), len(PROMPTS))]


@pytest.mark.parametrize(
    "flags",
    [
        {"max_loras": 3},
        {"max_loras": 1},
        {"max_loras": 2, "num_pages": 17, "max_num_batched_tokens": 24},
        {"max_loras": 2, "speculative": "ngram"},
        {"max_loras": 2, "enable_prefix_caching": False},
    ],
    ids=["a slot each", "one slot", "few pages, small steps", "drafts", "no prefix cache"],
)
def test_each_request_has_the_tokens_of_the_merged_model(model_dir, adapters, expected, flags: dict[str, Any]):
    """The second time, prompts are found in the cache."""
    engine = OfflineEngine(make_config(model_dir, **flags))
    for _ in range(2):
        assert generate(engine, [*adapters, None]) == expected


def test_drafts_of_a_model_ignore_adapters_and_are_verified_with_them(model_dir, adapters, expected):
    engine = OfflineEngine(make_config(model_dir, max_loras=2, draft_model=model_dir))
    assert generate(engine, [*adapters, None]) == expected


def test_the_same_with_a_step_in_flight(model_dir, adapters, expected):
    with late_backend(LateDevice):
        engine = OfflineEngine(make_config(model_dir, max_loras=2, max_num_seqs=4, max_num_batched_tokens=32))
    assert generate(engine, [*adapters, None]) == expected


def test_pages_from_a_disk_tier_are_those_of_the_same_adapter(model_dir, adapters, expected, tmp_path):
    flags: dict[str, Any] = {"max_loras": 2, "kv_disk": str(tmp_path), "num_pages": 18, "max_num_seqs": 2}
    for _ in range(2):  # the second engine finds the pages of the first one
        engine = OfflineEngine(make_config(model_dir, **flags))
        assert generate(engine, [*adapters, None]) == expected
        engine.close()


def test_other_contents_in_the_directory_fail_a_request_alone(model_dir, adapters, expected, tmp_path):
    path = write_adapter(tmp_path / "changing", model_dir, 7)
    old = Adapter("old", path, read_digest(path))
    write_adapter(tmp_path / "changing", model_dir, 0)
    new = Adapter("new", path, read_digest(path))
    engine = OfflineEngine(make_config(model_dir, max_loras=2))
    outputs = engine.generate(PROMPTS[:3], [params_of(old), params_of(new), params_of(None)])
    error = outputs[0].error or pytest.fail("it has no error")
    assert (error.status, error.code) == (503, "adapter_lost")
    assert "have changed since it was loaded" in error.message
    assert [output.token_ids for output in outputs[1:]] == [expected[0][1], expected[-1][2]]


def test_rows_continue_with_their_adapter_while_its_files_and_its_name_go(model_dir, adapters, tmp_path, expected):
    """Once it is in memory, nothing reads the files again."""
    path = write_adapter(tmp_path / "gone", model_dir, 0)
    adapter = Adapter("gone", path, read_digest(path))
    engine = OfflineEngine(make_config(model_dir, max_loras=1))
    engine.generate(PROMPTS[:1], [params_of(adapter, 1)])
    Path(path, "adapter_model.safetensors").unlink()
    assert generate(engine, [adapter])[0] == expected[0]


def start_with(model_dir: Path, adapter: Adapter, table: Path) -> OfflineEngine:
    write_table(str(table), {adapter.name: adapter})
    config = make_config(model_dir, max_loras=1)
    facts = msgspec.structs.replace(config.facts, adapter_table=str(table))
    return OfflineEngine(msgspec.structs.replace(config, facts=facts))


def test_an_unusable_adapter_ends_the_start_and_one_that_has_gone_does_not(model_dir, tmp_path, adapters, expected):
    small = tmp_path / "small"
    small.mkdir()
    write_tiny_llama(small)
    path = write_adapter(tmp_path / "bad", model_dir, 1)
    config_file = Path(path, "adapter_config.json")
    config_file.write_text(config_file.read_text().replace('"r": 4', '"r": 5'))
    with pytest.raises(BootError, match=r"--lora bad: .*lora_A"):
        start_with(model_dir, Adapter("bad", path, read_digest(path)), tmp_path / "table")
    engine = start_with(model_dir, Adapter("gone", str(tmp_path / "gone"), "00"), tmp_path / "table")
    assert generate(engine, [None])[0] == expected[-1]
    (output,) = engine.generate(PROMPTS[:1], [params_of(Adapter("gone", str(tmp_path / "gone"), "00"))])
    error = output.error or pytest.fail("it has no error")
    assert error.status == 503, "the server has lost it; the request is right"
    assert f"there is no directory {tmp_path / 'gone'}" in error.message
    assert "load it again (/v1/load_lora_adapter)" in error.message
    engine = start_with(model_dir, adapters[0], tmp_path / "table")
    assert engine._scheduler.gauges()["adapters"] == 1
