"""How loading tells what it does."""

from collections.abc import Callable

Report = Callable[[str, float | None], None]
"""Takes the phase that has begun, and the fraction of it that is done, `None` if that is not known."""
