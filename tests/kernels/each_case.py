"""A test that runs for many cases in one item: an item costs more than most calls of a kernel."""

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest

Test = Callable[..., None]


def each_case(names: str | tuple[str, ...], values: Iterable[Any]) -> Callable[[Test], Test]:
    """Runs the test in a loop, where `pytest.mark.parametrize` makes an item of each case. A failure names its case.

    Cases that skip do not end the loop; the item is skipped if all do.
    """
    fields = (names,) if isinstance(names, str) else names
    cases = [dict(zip(fields, (value,) if isinstance(names, str) else value, strict=True)) for value in values]

    def decorate(test: Test) -> Test:
        @functools.wraps(test)
        def run(**fixtures: Any) -> None:
            skips: list[BaseException] = []
            for case in cases:
                try:
                    test(**fixtures, **case)
                except pytest.skip.Exception as skip:
                    skips.append(skip)
                except Exception as error:
                    error.add_note("with " + ", ".join(f"{name}={str(value)[:200]}" for name, value in case.items()))
                    raise
            if len(skips) == len(cases):
                raise skips[0]

        signature = inspect.signature(test)
        left = [parameter for name, parameter in signature.parameters.items() if name not in fields]
        assert len(left) + len(fields) == len(signature.parameters), "the test does not take the cases"
        setattr(run, "__signature__", signature.replace(parameters=left))  # noqa: B010 (unknown to type checkers)
        return run

    return decorate
