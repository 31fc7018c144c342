"""Text of clients, models and files on a terminal."""

CONTROLS = dict.fromkeys({*range(0x20), *range(0x7F, 0xA0)} - {ord("\n"), ord("\t")})


def without_controls(text: str) -> str:
    """Returns the text without control characters (C0, DEL, C1), which can command a terminal; lines and tabs stay."""
    return text.translate(CONTROLS)
