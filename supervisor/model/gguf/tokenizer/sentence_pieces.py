"""SentencePiece's byte-pair encoding: the scores of the pieces order the merges."""

from messages.errors import BootError
from supervisor.model.gguf.tokenizer.parts import SPACE, Part, Parts, byte_pair_model, piece_decoder, replace, sequence
from supervisor.model.gguf.tokenizer.vocabulary import PREFIX, TokenType, Vocabulary


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
    merges = [
        (-score, -cut, text[:cut], text[cut:])
        for text, score in pieces.items()
        for cut in range(1, len(text))
        if text[:cut] in pieces and text[cut:] in pieces
    ]
    if len(merges) > 1 and len({merge[0] for merge in merges}) == 1:
        raise BootError(
            f"{PREFIX}scores: all {len(merges)} merges have the same score, so their order is not in the file: it was "
            "converted without the model's SentencePiece file. Give a directory with the model's tokenizer.json with "
            "--tokenizer"
        )
    merges.sort(key=lambda merge: merge[:2])
    return [(left, right) for _, _, left, right in merges]
