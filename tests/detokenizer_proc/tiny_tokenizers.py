"""Minimal tokenizers, one for each kind of decoder."""

from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models

BYTE_TOKENS = tuple(f"<0x{byte:02X}>" for byte in range(256))


def make_tokenizer(tokens: tuple[str, ...], decoder: Any, special: tuple[str, ...] = ()) -> Tokenizer:
    """Returns a tokenizer whose token i is `tokens[i]`; those in `special` come after them and are special."""
    tokenizer = Tokenizer(models.WordLevel({token: i for i, token in enumerate(tokens)}, unk_token=tokens[0]))
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    if decoder is not None:
        tokenizer.decoder = decoder
    return tokenizer


def characters(text: str = "abcdefghijklmnopqrstuvwxyz .!\n") -> Tokenizer:
    """One token per character; `<end>` is special and comes last."""
    return make_tokenizer(tuple(text), decoders.Fuse(), special=("<end>",))


def llama() -> Tokenizer:
    """Words with ▁ for a space, and a token for each byte, as in Llama 2."""
    words = ("▁", "▁▁", "▁a", "b", "▁c▁d", "é", "<0x+A>", "<0xé>", "\ufffd", " ", "")
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    return make_tokenizer(words + BYTE_TOKENS, decoders.Sequence(steps), special=("<s>", "</s>"))
