"""Makes Triton's interpreter faster, with the same results.

It patches the language once per launch, not in each call of a device function: patching looks through all names of
`triton.language` each time, which took two thirds of the time of a kernel that calls many functions. The patches
of a launch stay until its end, so that the next call finds nothing new.

Each sum and product of integers is not computed once more in 64 bits for an assertion of overflow, which without
`debug` is then left out; and the table of numpy's types is made once and not in each operation.
"""

import functools
from collections.abc import Callable
from typing import Any

import triton.language as tl
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter


def make_faster() -> None:
    """From now on launches in this process are faster; a second call changes nothing."""
    module: Any = interpreter
    if getattr(module, "is_faster", False):
        return
    module.is_faster = True
    _make_table_once(module)
    _leave_out_unused_assertions()
    _patch_once_a_launch(module)


def _make_table_once(module: Any) -> None:
    of_scalar = functools.cache(module._get_np_dtype)
    of_pointer: Any = module._get_np_dtype(tl.pointer_type(tl.int8))

    def look_up(kind: Any) -> Any:
        scalar = kind.scalar  # blocks and pointers cannot be hashed
        return of_pointer if scalar.is_ptr() else of_scalar(scalar)

    module._get_np_dtype = look_up


def _leave_out_unused_assertions() -> None:
    semantic: Any = TritonSemantic
    assert_no_overflow: Callable[..., None] = semantic.binary_op_sanitize_overflow_impl

    def check(self: Any, *operands: Any) -> None:
        if self.builder.options.debug:
            assert_no_overflow(self, *operands)

    semantic.binary_op_sanitize_overflow_impl = check


def _patch_once_a_launch(module: Any) -> None:
    launches: list[set[tuple[bool, bool]]] = []
    """The patches of each launch that runs."""

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
