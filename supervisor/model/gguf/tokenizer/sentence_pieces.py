"""SentencePiece's byte-pair encoding: the scores of the pieces order the merges."""

from collections.abc import Iterator, Mapping

from messages.errors import BootError
from supervisor.model.gguf.tokenizer.parts import (
    SPACE,
    Part,
    Parts,
    byte_pair_model,
    piece_decoder,
    replace,
    sequence,
)
from supervisor.model.gguf.tokenizer.vocabulary import (
    PREFIX,
    TokenType,
    Vocabulary,
    refuse,
)

MAX_CHARS, MAX_MERGES = 1 << 28, 1 << 21
"""The characters of pairs that are looked for, and the pairs that are found."""


def sentence_piece_parts(vocabulary: Vocabulary) -> Parts:
    """Raises `BootError` if the scores do not order the pieces."""
    begins_with_space = vocabulary.flag("add_space_prefix", True)
    prepend: list[Part] = [{"type": "Prepend", "prepend": SPACE}] if begins_with_space else []
    return Parts(
        byte_pair_model(vocabulary.id_of_text(), _merges(vocabulary), vocabulary.unknown_text(), has_byte_tokens=True),
        sequence("normalizers", [*prepend, replace(" ", SPACE)]),
        None,
        piece_decoder(begins_with_space),
        "bos_token" if vocabulary.flag("add_bos_token", True) else None,
        "eos_token" if vocabulary.flag("add_eos_token", False) else None,
    )


def _merges(vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """Returns all pairs of tokens that make a token, in the order in which SentencePiece merges them.

    It merges the pair whose piece has the best score, of equal ones the leftmost. Equal scores are those of runs of
    spaces: a run grows from its left end, so the pair with the longer left half is first.
    """
    scores = vocabulary.scores()
    pieces = {
        text: score
        for text, score, kind in zip(vocabulary.texts, scores, vocabulary.types, strict=True)
        if kind in (TokenType.NORMAL, TokenType.UNUSED)
    }
    merges: list[tuple[float, int, str, str]] = []
    num_chars = 0
    for text, prefixes in _with_prefixes(pieces):
        num_chars += len(text) * len(prefixes)
        if num_chars > MAX_CHARS or len(merges) > MAX_MERGES:
            refuse("tokens", "have too many other tokens within them")
        for left in prefixes:
            right = text[len(left) :]
            if right in pieces:
                merges.append((-pieces[text], -len(left), left, right))
    if len(merges) > 1 and len({merge[0] for merge in merges}) == 1:
        raise BootError(
            f"{PREFIX}scores: all {len(merges)} merges have the same score, so their order is not in the file: it was "
            "converted without the model's SentencePiece file. Give a directory with the model's tokenizer.json with "
            "--tokenizer"
        )
    merges.sort(key=lambda merge: merge[:2])
    return [(left, right) for _, _, left, right in merges]


def _with_prefixes(pieces: Mapping[str, float]) -> Iterator[tuple[str, list[str]]]:
    """Yields each piece with the other pieces that it begins with. In order, those are the last ones before it."""
    prefixes: list[str] = []
    for text in sorted(pieces):
        while prefixes and not text.startswith(prefixes[-1]):
            prefixes.pop()
        yield text, prefixes
        prefixes.append(text)
