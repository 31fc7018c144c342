"""Byte-pair encoding with the merges of the file: GPT-2's on bytes, Gemma 4's on characters."""

from supervisor.model.gguf.tokenizer.parts import (
    SPACE,
    Part,
    Parts,
    byte_pair_model,
    piece_decoder,
    replace,
    sequence,
    split,
)
from supervisor.model.gguf.tokenizer.pre_tokenizers import find_pre_tokenizer
from supervisor.model.gguf.tokenizer.vocabulary import PREFIX, Vocabulary

BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}


def byte_pair_parts(vocabulary: Vocabulary) -> Parts:
    """Raises `BootError` for an unknown pre-tokenizer, or a merge that is none."""
    pre = find_pre_tokenizer("gemma4" if vocabulary.kind == "gemma4" else vocabulary.metadata.get(PREFIX + "pre"))
    splits = [split(pattern) for pattern in pre.patterns]
    ids, merges = vocabulary.id_of_text(), vocabulary.merges()
    adds_bos = vocabulary.flag("add_bos_token", pre.adds_bos) or (pre.adds_bos and not pre.is_byte_level)
    around = "bos_token" if adds_bos else None, "eos_token" if vocabulary.flag("add_eos_token", False) else None
    if pre.is_byte_level:
        model = byte_pair_model(ids, merges, ignore_merges=pre.ignore_merges)
        normalizer: Part | None = {"type": "NFC"} if pre.composes else None
        return Parts(model, normalizer, sequence("pretokenizers", [*splits, BYTE_LEVEL]), BYTE_LEVEL, *around)
    model = byte_pair_model(ids, merges, vocabulary.unknown_text(), has_byte_tokens=True)
    spaces = replace(" ", SPACE)
    return Parts(model, spaces, sequence("pretokenizers", splits), piece_decoder(strips_space=False), *around)
