"""Names the case that failed, in a test of many: such a test costs less than one of each case."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def naming(**values: Any) -> Iterator[None]:
    """An error in the block shows `values`."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"with {', '.join(f'{name} {value}' for name, value in values.items())}")
        raise
