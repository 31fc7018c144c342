import msgspec
import pytest

from messages.config.server import Config, ModelFacts, RunConfig

FACTS = ModelFacts(
    model_dir="/m",
    tokenizer_dir="/t",
    served_names=("a", "b"),
    vocab_size=10,
    max_model_len=20,
    eos_token_ids=(1, 2),
    sampling_defaults={"temperature": 0.5},
)


def test_the_tree_survives_json():
    config = Config(run=RunConfig(external=("scheduler",), restart=("tokenizer=never",)), facts=FACTS)
    assert msgspec.json.decode(msgspec.json.encode(config), type=Config) == config


def test_the_tree_is_frozen_and_keeps_to_its_ranges():
    config = Config(facts=FACTS)
    with pytest.raises(AttributeError):
        config.run.drain_timeout_s = 1.0  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"facts": msgspec.to_builtins(FACTS), "http": {"port": -1}}, Config)
