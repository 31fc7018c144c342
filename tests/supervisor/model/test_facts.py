import json
from pathlib import Path
from typing import Any

import pytest

from messages.config.server import ModelConfig
from messages.errors import BootError, UsageError
from supervisor.model.facts import read_model_facts

CONFIG = {"vocab_size": 100, "max_position_embeddings": 512, "eos_token_id": 2}


def write_model(directory: Path, config: Any, generation: Any = None) -> Path:
    (directory / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    if generation is not None:
        (directory / "generation_config.json").write_text(json.dumps(generation))
    return directory


def facts_of(directory: Path, **flags: Any):
    return read_model_facts(ModelConfig(**flags), directory, directory, "the-model")


def test_the_facts_of_a_real_llama(shared_dir: Path):
    facts = facts_of(shared_dir / "models" / "tinystories-656k-llama")
    assert (facts.vocab_size, facts.max_model_len, facts.eos_token_ids) == (2048, 512, (2,))
    assert facts.served_names == ("the-model",)
    assert facts.sampling_defaults == {}


def test_the_facts_of_a_real_gpt2(shared_dir: Path):
    facts = facts_of(shared_dir / "models" / "nano-shakespeare-gpt2")
    assert (facts.vocab_size, facts.max_model_len, facts.eos_token_ids) == (65, 128, ())


def test_served_names_come_from_the_flag_where_it_is_provided(tmp_path: Path):
    assert facts_of(write_model(tmp_path, CONFIG), served_model_name=("a", "b")).served_names == ("a", "b")


@pytest.mark.parametrize(
    ("eos", "generation_eos", "expected"),
    [
        (2, None, (2,)),
        (2, 7, (7, 2)),
        (2, [7, 8], (7, 8, 2)),
        (2, [7, 2], (7, 2)),
        (2, [7, 1000], (7, 2)),
        ([1, 2], None, (1, 2)),
        (None, None, ()),
        (-1, None, ()),
        (0, None, (0,)),
    ],
)
def test_end_tokens_are_those_of_both_configurations(tmp_path: Path, eos, generation_eos, expected):
    write_model(tmp_path, {**CONFIG, "eos_token_id": eos}, {"eos_token_id": generation_eos})
    assert facts_of(tmp_path).eos_token_ids == expected


def test_the_context_of_mpt(tmp_path: Path):
    assert facts_of(write_model(tmp_path, {"vocab_size": 100, "max_seq_len": 2048})).max_model_len == 2048


def test_the_end_token_of_a_nested_configuration_counts(tmp_path: Path):
    write_model(tmp_path, {**CONFIG, "text_config": {"eos_token_id": [5, 2]}})
    assert facts_of(tmp_path).eos_token_ids == (2, 5)


def test_the_language_model_of_a_model_of_images_may_have_fields_by_default(tmp_path: Path):
    nested = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": {"model_type": "gemma3_text"}}
    facts = facts_of(write_model(tmp_path, {**nested, "eos_token_id": [1, 106], "vision_config": {}}))
    assert (facts.vocab_size, facts.max_model_len, facts.eos_token_ids) == (262_208, 131_072, (1, 106))


@pytest.mark.parametrize(
    ("tokenizer_config", "tokenizer", "expected"),
    [
        ({"eos_token": "<e>", "added_tokens_decoder": {"9": {"content": "<e>"}}}, None, (2, 9)),
        (
            {"eos_token": {"content": "<e>"}},
            {"model": {"vocab": {}}, "added_tokens": [{"id": 8, "content": "<e>"}]},
            (2, 8),
        ),
        ({"eos_token": "<e>"}, {"model": {"vocab": {"<e>": 7}}}, (2, 7)),
        ({"eos_token": "<e>"}, {"model": {"vocab": [["<e>", 0.5]]}}, (2,)),
        ({"eos_token": None}, {"model": {"vocab": {"<e>": 7}}}, (2,)),
        ({"eos_token": "<e>"}, None, (2,)),
    ],
)
def test_the_end_token_of_the_tokenizer_counts(tmp_path: Path, tokenizer_config: Any, tokenizer: Any, expected: Any):
    write_model(tmp_path, CONFIG)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    if tokenizer is not None:
        (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert facts_of(tmp_path).eos_token_ids == expected


@pytest.mark.parametrize("key", ["n_positions", "max_position_embeddings", "n_ctx"])
def test_the_context_is_found_under_each_of_its_names(tmp_path: Path, key: str):
    write_model(tmp_path, {"vocab_size": 100, key: 64})
    assert facts_of(tmp_path).max_model_len == 64
    assert facts_of(tmp_path, max_model_len=64).max_model_len == 64
    assert facts_of(tmp_path, max_model_len=10).max_model_len == 10
    with pytest.raises(UsageError, match="--max-model-len: 65 is more than the model's context of 64 tokens"):
        facts_of(tmp_path, max_model_len=65)


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}


@pytest.mark.parametrize(
    ("rope", "context", "longest"),
    [
        (YARN, 2048, 2048),
        ({"type": "yarn", "factor": 4}, 2048, 2048),
        (YARN | {"original_max_position_embeddings": 64}, 512, 512),
        ({"rope_type": "dynamic", "factor": 2.0}, 512, 1024),
        ({"rope_type": "linear", "factor": 8.0}, 512, 512),
        ({"rope_type": "yarn", "factor": "4"}, 512, 512),
        ({"rope_type": "yarn", "factor": 1e300}, 512, 512),
        ({"rope_type": "yarn", "factor": float("nan")}, 512, 512),
        (["yarn"], 512, 512),
        (None, 512, 512),
    ],
)
@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_scaled_positions_extend_the_context(tmp_path: Path, key: str, rope: Any, context: int, longest: int):
    write_model(tmp_path, CONFIG | {key: rope})
    assert facts_of(tmp_path).max_model_len == context
    assert facts_of(tmp_path, max_model_len=longest).max_model_len == longest
    with pytest.raises(UsageError, match=f"more than the model's context of {longest} tokens"):
        facts_of(tmp_path, max_model_len=longest + 1)


def test_a_context_that_the_model_does_not_report_must_be_provided(tmp_path: Path):
    write_model(tmp_path, {"vocab_size": 100})
    with pytest.raises(BootError, match="give the context as --max-model-len"):
        facts_of(tmp_path)
    assert facts_of(tmp_path, max_model_len=77).max_model_len == 77


def test_sampling_defaults_are_what_the_file_gives(tmp_path: Path):
    write_model(tmp_path, CONFIG, {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "min_p": None, "max_new_tokens": 5})
    assert facts_of(tmp_path).sampling_defaults == {"temperature": 0.6, "top_p": 0.9, "top_k": 20}
    assert facts_of(tmp_path).sampling_source == "the model's files"
    assert facts_of(tmp_path, generation_config="none").sampling_defaults == {}


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("SmolLM2-135M-Instruct", {"temperature": 0.2, "top_p": 0.9}),
        ("HuggingFaceTB/SmolLM2-1.7B-Instruct", {"temperature": 0.2, "top_p": 0.9}),
        ("bartowski/Llama-3.2-1B-Instruct-Q4_K_M", {"temperature": 0.6, "top_p": 0.9}),
        ("SmolLM2-135M", {}),
        ("my-smollm2-135m-instruct", {}),
    ],
)
def test_a_model_whose_files_have_no_sampling_has_that_of_its_card(tmp_path: Path, name: str, values: dict[str, float]):
    write_model(tmp_path, CONFIG, {"eos_token_id": 2})
    facts = read_model_facts(ModelConfig(), tmp_path, tmp_path, name)
    assert (facts.sampling_defaults, facts.sampling_source) == (values, "the model's card" if values else "")
    write_model(tmp_path, CONFIG, {"top_k": 3})
    assert read_model_facts(ModelConfig(), tmp_path, tmp_path, name).sampling_defaults == {"top_k": 3}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("{", "config.json: is not valid JSON"),
        ("[]", "is not a JSON object"),
        ('{"a":' * 99_999, "config.json: is nested too deeply"),
        ("version https://git-lfs.github.com/spec/v1\noid x", "config.json: is a pointer of Git LFS"),
        (
            {"text_config": {"vocab_size": 5}, "architectures": ["Idefics2ForConditionalGeneration"]},
            "'Idefics2For.* in text",
        ),
        ({"text_config": {"vocab_size": 5}, "model_type": "llava"}, "'llava' has its language model in text_config"),
        ({"vocab_size": 10**9, "n_ctx": 5}, "vocab_size is 1000000000, more than this server can hold"),
        ({"vocab_size": 5, "n_ctx": 10**12}, "n_ctx is 1000000000000, more than this server can hold"),
        ({"n_ctx": 5}, "vocab_size is missing"),
        ({"vocab_size": "many", "n_ctx": 5}, "vocab_size is 'many', not a positive whole number"),
        ({"vocab_size": 5, "n_ctx": 0}, "n_ctx is 0"),
        ({**CONFIG, "eos_token_id": "</s>"}, "eos_token_id is '</s>'"),
    ],
)
def test_a_broken_config_is_notified_with_its_file(tmp_path: Path, config: Any, message: str):
    write_model(tmp_path, config)
    with pytest.raises(BootError, match=message) as raised:
        facts_of(tmp_path)
    assert str(tmp_path) in str(raised.value)


def test_a_sampling_default_that_is_no_number_is_notified(tmp_path: Path):
    write_model(tmp_path, CONFIG, {"temperature": "hot"})
    with pytest.raises(BootError, match="temperature is 'hot', not a number; --generation-config none ignores it"):
        facts_of(tmp_path)
    assert facts_of(tmp_path, generation_config="none").sampling_defaults == {}


@pytest.mark.parametrize("text", ['{"temperature": 1e999}', '{"top_p": NaN}', "[" * 99_999])
def test_a_generation_configuration_that_cannot_be_is_notified_with_its_file(tmp_path: Path, text: str):
    write_model(tmp_path, CONFIG)
    (tmp_path / "generation_config.json").write_text(text)
    with pytest.raises(BootError, match=r"generation_config\.json: "):
        facts_of(tmp_path)


def test_a_directory_without_a_model_is_notified(tmp_path: Path):
    with pytest.raises(BootError, match="contains no model"):
        facts_of(tmp_path)
