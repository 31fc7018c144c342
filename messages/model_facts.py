"""What is known of the model before any process starts: a part of the configuration (`messages/config.py`)."""

import msgspec


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the launcher found out about the model; not flags. `sampling_defaults` come from generation_config.json."""

    model_dir: str
    tokenizer_dir: str
    served_names: tuple[str, ...]
    vocab_size: int
    max_model_len: int
    """Longest prompt plus output in tokens, `--max-model-len` applied."""
    eos_token_ids: tuple[int, ...] = ()
    sampling_defaults: dict[str, float] = {}
