"""Makes Triton's interpreter patch the language once a launch and not in each call of a function of the device.

It looks through all names of `triton.language` each time, which took two thirds of the time of a kernel that calls many
functions. What is patched for a launch stays until its end, so that the next call finds nothing new.
"""

from collections.abc import Callable
from typing import Any

import triton.language as tl
from triton.runtime import interpreter


def patch_once_a_launch() -> None:
    """From now on launches in this process are faster; a second call changes nothing."""
    module: Any = interpreter
    if getattr(module, "patches_once_a_launch", False):
        return
    module.patches_once_a_launch = True
    launches: list[set[tuple[bool, bool]]] = []
    """What is patched in each launch that runs."""

    patch_language: Callable[[Any], Any] = module._patch_lang
    run_grid: Callable[..., None] = module.GridExecutor.__call__

    def patch(function: Any) -> Any:
        names = function.__globals__.values()
        languages = any(value is tl for value in names), any(value is tl.core for value in names)
        if launches and languages in launches[-1]:
            return None
        if launches:
            launches[-1].add(languages)
        return patch_language(function)

    def run(self: Any, *arguments: Any, **named: Any) -> None:
        launches.append(set())
        try:
            run_grid(self, *arguments, **named)
        finally:
            launches.pop()

    module._patch_lang, module.GridExecutor.__call__ = patch, run
