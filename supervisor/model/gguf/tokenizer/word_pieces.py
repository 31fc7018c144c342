"""WordPiece, BERT's tokenizer. GGUF marks the beginning of a word, tokenizer.json its continuation."""

from supervisor.model.gguf.tokenizer.parts import (
    SPACE,
    Parts,
)
from supervisor.model.gguf.tokenizer.vocabulary import (
    Vocabulary,
    refuse,
)

CONTINUES = "##"


def word_piece_parts(vocabulary: Vocabulary) -> Parts:
    """Raises `BootError` without a token for unknown words."""
    unknown = vocabulary.unknown_text() or refuse("unknown_token_id", "is missing")
    lowercase = vocabulary.flag("normalizer.lowercase", True)
    normalizer = {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": True,
        "strip_accents": vocabulary.flag("normalizer.strip_accents", lowercase),
        "lowercase": lowercase,
    }
    model = {
        "type": "WordPiece",
        "unk_token": unknown,
        "continuing_subword_prefix": CONTINUES,
        "max_input_chars_per_word": 100,
        "vocab": {_spell(vocabulary, token_id): token_id for token_id in range(len(vocabulary.texts))},
    }
    decoder = {"type": "WordPiece", "prefix": CONTINUES, "cleanup": True}
    return Parts(model, normalizer, {"type": "BertPreTokenizer"}, decoder, "cls_token", "sep_token")


def _spell(vocabulary: Vocabulary, token_id: int) -> str:
    text = vocabulary.texts[token_id]
    if vocabulary.is_special(token_id):
        return text
    return text[1:] if text.startswith(SPACE) else CONTINUES + text
