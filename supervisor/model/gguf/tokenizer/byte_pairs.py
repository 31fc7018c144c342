"""Byte-pair encoding with the merges of the file: GPT-2's on bytes, Gemma 4's on characters."""

from supervisor.model.gguf.tokenizer import parts
from supervisor.model.gguf.tokenizer.pre_tokenizers import find_pre_tokenizer
from supervisor.model.gguf.tokenizer.vocabulary import PREFIX, Vocabulary

BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}


def byte_pair_parts(vocabulary: Vocabulary) -> parts.Parts:
    """Raises `BootError` for an unknown pre-tokenizer, or a merge that is none."""
    pre = find_pre_tokenizer("gemma4" if vocabulary.kind == "gemma4" else vocabulary.metadata.get(PREFIX + "pre"))
    splits = [parts.split(pattern) for pattern in pre.patterns]
    ids, merges = vocabulary.id_of_text(), vocabulary.merges()
    adds_bos = vocabulary.flag("add_bos_token", pre.adds_bos) or (pre.adds_bos and not pre.is_byte_level)
    around = "bos_token" if adds_bos else None, "eos_token" if vocabulary.flag("add_eos_token", False) else None
    if pre.is_byte_level:
        model = parts.byte_pair_model(ids, merges, ignore_merges=pre.ignore_merges)
        normalizer: parts.Part | None = {"type": "NFC"} if pre.composes else None
        return parts.Parts(
            model, normalizer, parts.sequence("pretokenizers", [*splits, BYTE_LEVEL]), BYTE_LEVEL, *around
        )
    model = parts.byte_pair_model(ids, merges, vocabulary.unknown_text(), has_byte_tokens=True)
    spaces = parts.replace(" ", parts.SPACE)
    return parts.Parts(
        model, spaces, parts.sequence("pretokenizers", splits), parts.piece_decoder(strips_space=False), *around
    )
