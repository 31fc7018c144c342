"""The flags of the server of a replay: the values of a manifest become values of flags, never other flags."""

from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from extras.batches.config import BatchConfig
from extras.replay.stand_in import server_flags
from messages.config.server import (
    CacheConfig,
    Config,
    DraftFacts,
    HttpConfig,
    ModelConfig,
    ModelFacts,
    SchedulingConfig,
)
from messages.errors import SluiceError
from supervisor.flags import parse_flags

FACTS = ModelFacts(model_dir="/m", tokenizer_dir="/t", served_names=("m",), vocab_size=8, max_model_len=8)


def parsed(config: Config) -> dict[str, Any]:
    return cast("dict[str, Any]", parse_flags(server_flags(config, "/tmp/replay")))


def test_no_text_of_a_manifest_becomes_another_flag():
    text = "--api-key"
    facts = msgspec.structs.replace(FACTS, served_names=(text, "--port=1"), model_dir=text, tokenizer_dir="")
    model = ModelConfig(chat_template=text, served_model_name=("x", "--port", "1"), device="--uds")
    scheduling = SchedulingConfig(draft_model="--host")
    found = parsed(Config(facts=facts, model=model, scheduling=scheduling))
    assert (found["http"], found["batches"]) == (HttpConfig(), BatchConfig())
    assert found["scheduling"] == SchedulingConfig()
    assert found["model"] == msgspec.structs.replace(
        model, served_model_name=(text,), model=str(Path(text).absolute()), tokenizer=str(Path.cwd())
    )


def test_what_a_server_computes_with_is_that_of_the_recorded_one():
    facts = msgspec.structs.replace(FACTS, draft=DraftFacts(model_dir="/d", vocab_size=8, max_model_len=8))
    scheduling = SchedulingConfig(speculative="draft", draft_model="owner/draft", seed=5)
    found = parsed(Config(facts=facts, scheduling=scheduling, model=ModelConfig(model="owner/m", dtype="float32")))
    assert found["model"] == ModelConfig(model="/m", tokenizer="/t", served_model_name=("m",), dtype="float32")
    assert found["scheduling"] == msgspec.structs.replace(scheduling, draft_model="/d"), "nothing is fetched"


def test_the_directory_of_evicted_pages_is_left_alone():
    found = parsed(Config(facts=FACTS, cache=CacheConfig(kv_disk="/home/me/pages", kv_disk_gb=2.0)))
    assert found["cache"] == CacheConfig(kv_disk="/tmp/replay/kv-disk", kv_disk_gb=2.0)


def test_a_text_that_no_flag_can_hold_is_refused():
    with pytest.raises(SluiceError, match="zero byte"):
        server_flags(Config(facts=msgspec.structs.replace(FACTS, model_dir="a\0b")), "/tmp/replay")
