"""Progress reports of loading."""

from collections.abc import Callable

Report = Callable[[str, float | None], None]
"""Called with the current phase of loading and its completed fraction, `None` if unknown."""
