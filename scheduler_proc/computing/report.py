"""How loading tells what it does."""

from collections.abc import Callable

Report = Callable[[str, float | None], None]
"""Called with the current phase of loading and its completed fraction, `None` if unknown."""
