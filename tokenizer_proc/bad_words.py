"""Words that must not be generated, as the id sequences that must not be completed."""

from messages.columns import pack_int32
from messages.errors import bad_request
from tokenizer_proc.encoding import Encoding


def bad_word_ids(words: tuple[str, ...], encoding: Encoding, vocab_size: int) -> tuple[bytes, ...]:
    """Returns int32 sequences for each word: as it begins a text, and as it follows a space where that differs.

    As in vLLM, but the form after a space is left out only where the other one forbids it too. Raises `RequestError`
    for a word without tokens or with one that the model does not have.
    """
    sequences: dict[bytes, None] = {}
    for word in words:
        bare = encoding.encode(word.lstrip(), add_special_tokens=False)
        after_space = encoding.encode(" " + word.lstrip(), add_special_tokens=False)
        for ids in [bare] if after_space[-len(bare) :] == bare else [bare, after_space]:
            if not ids or max(ids) >= vocab_size:
                raise bad_request(f"The bad word {word!r} cannot be written in tokens of the model", "bad_words")
            sequences[pack_int32(ids)] = None
    return tuple(sequences)
