"""The tokens that mark a gap to fill in a prompt (FIM), by family of models."""

from typing import NamedTuple


class Marks(NamedTuple):
    """The tokens before prefix, suffix and middle. Without one for the middle, it follows the part before it."""

    prefix: str
    suffix: str
    middle: str
    is_suffix_first: bool = False


FAMILIES = (
    Marks("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen2.5-Coder, Qwen3-Coder, CodeGemma, Granite 4
    Marks("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder 1 and 2, Granite Code, Stable Code, Refact
    Marks("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    Marks("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek-Coder, DeepSeek-V2 and later
    Marks("▁<PRE>", "▁<SUF>", "▁<MID>"),  # CodeLlama
    Marks("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),  # GLM-4.5 and later
    Marks("<|prefix|>", "<|suffix|>", "<|middle|>"),  # Falcon-H1-Tiny-Coder
    Marks("<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>", is_suffix_first=True),  # Seed-Coder
    Marks("[PREFIX]", "[SUFFIX]", "", is_suffix_first=True),  # Codestral, Devstral, Mistral's Tekken tokenizers
)
