"""Reads the draft model's facts, and checks whether it can draft for the model."""

from pathlib import Path

import msgspec

from messages.config.server import DraftFacts, ModelConfig, ModelFacts, SchedulingConfig
from messages.errors import BootError, UsageError, errors_as
from runtime.special_tokens import TokenizerJson
from supervisor.console import Console
from supervisor.model.facts import read_model_facts
from supervisor.model.lookup import find_draft_model


class _Vocabulary(msgspec.Struct):
    vocab: dict[str, int] | list[tuple[str, float]]


def add_draft_facts(
    facts: ModelFacts, model: ModelConfig, scheduling: SchedulingConfig, console: Console | None = None
) -> ModelFacts:
    """Returns the facts with those of the draft model, if the flags ask for one; this may fetch it from the hub.

    Raises `UsageError` for flags that do not go together, and `BootError` for a directory that holds no model, or one
    of another vocabulary.
    """
    name = scheduling.draft_model
    if scheduling.speculative != "draft":
        if name:
            raise UsageError("--draft-model is used by --speculative draft alone; add that, or leave --draft-model out")
        return facts
    if not name:
        raise UsageError(
            "--speculative draft: which model? --draft-model DIR names a smaller one with the same tokenizer; without "
            "one there is --speculative ngram"
        )
    directory = find_draft_model(name, model, console)
    draft = read_model_facts(ModelConfig(), directory, directory, name)
    _check_vocabulary(facts, draft)
    max_len = min(draft.max_model_len, facts.max_model_len)
    own = DraftFacts(model_dir=str(directory), vocab_size=draft.vocab_size, max_model_len=max_len)
    return msgspec.structs.replace(facts, draft=own)


def _check_vocabulary(facts: ModelFacts, draft: ModelFacts) -> None:
    """Raises `BootError` unless equal ids mean equal tokens. Either vocabulary may be padded beyond the tokenizer's."""
    files = [Path(directory) / "tokenizer.json" for directory in (facts.tokenizer_dir, draft.tokenizer_dir)]
    num_needed = max(facts.vocab_size, draft.vocab_size)
    if all(file.is_file() for file in files):
        ids, draft_ids = map(_read_ids, files)
        if ids != draft_ids:
            raise BootError(
                f"--draft-model: {files[1]} does not give all tokens the ids that {files[0]} gives them, so its drafts "
                "would be other text; take a model with the same tokenizer"
            )
        num_needed = max(ids.values(), default=0) + 1
    if min(facts.vocab_size, draft.vocab_size) < num_needed:
        raise BootError(
            f"--draft-model: its vocabulary has {draft.vocab_size} tokens, the model's {facts.vocab_size}, and both "
            f"need {num_needed}; take a model with the same tokenizer (compared only where both have a tokenizer.json)"
        )


def _read_ids(file: Path) -> dict[str, int]:
    """Returns the ids of all tokens. Raises `BootError` for a file that cannot be read."""
    with errors_as(BootError, f"{file} cannot be read as a tokenizer", of=(OSError, msgspec.MsgspecError)):
        tokenizer = msgspec.json.decode(file.read_bytes(), type=TokenizerJson)
        vocab = msgspec.json.decode(tokenizer.model, type=_Vocabulary).vocab
    ids = vocab if isinstance(vocab, dict) else {token: index for index, (token, _) in enumerate(vocab)}
    return ids | {each.content: each.id for each in tokenizer.added_tokens}
