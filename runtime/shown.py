"""How errors show values of files: short, whatever their size is."""

from typing import Any

MAX_SHOWN_CHARS = 60


def shown(value: Any) -> str:
    """Returns the value as Python writes it, at most 60 characters. Long values are cut before they are written.

    A character that UTF-8 cannot have is escaped.
    """
    is_cut = isinstance(value, list | tuple | str | bytes) and len(value) > MAX_SHOWN_CHARS  # pyright: ignore
    text = repr(value[:MAX_SHOWN_CHARS] if is_cut else value)  # pyright: ignore[reportUnknownArgumentType]
    return f"{text[:MAX_SHOWN_CHARS]}…" if is_cut or len(text) > MAX_SHOWN_CHARS else text
