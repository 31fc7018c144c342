"""Makes Triton's interpreter faster, with the same results.

It patches the language once per launch, not in each call of a device function: patching looks through all names of
`triton.language` each time, which took two thirds of the time of a kernel that calls many functions. The patches
of a launch stay until its end, so that the next call finds nothing new.

Types of blocks and tensors share one object for each shape, so blocks of the same shape need not be compared or
broadcast. Each sum and product of integers is not computed once more in 64 bits for an assertion of overflow, which
without `debug` is then left out; and the table of numpy's types is made once and not in each operation.
"""

import functools
from collections.abc import Callable
from typing import Any

import triton.language as tl
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter

from kernels.plans import latent_tiles


def make_faster() -> None:
    """From now on launches in this process are faster; a second call changes nothing."""
    module: Any = interpreter
    if getattr(module, "is_faster", False):
        return
    module.is_faster = True
    _make_table_once(module)
    _leave_out_unused_assertions()
    _share_shapes()
    _patch_once_a_launch(module)
    latent_tiles.NUM_PROGRAMS = 16  # most of a list's programs are empty, and take a tenth of the time of others


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


def _share_shapes() -> None:
    core: Any = tl.core
    constexpr, unwrap = core.constexpr, core._unwrap_if_constexpr
    init_block, init_tensor = core.block_type.__init__, core.tensor.__init__
    broadcast = TritonSemantic.broadcast_impl_value
    blocks: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    """By shape: the shape of the type, its name, the number of elements; the shape and number of a tensor."""

    def unwrap_common(value: Any) -> Any:
        kind = type(value)
        return value.value if kind is constexpr else value if kind in (int, bool, float, core.tensor) else unwrap(value)

    def make_block(self: Any, element_ty: Any, shape: Any) -> None:
        key = tuple([size.value if isinstance(size, constexpr) else size for size in shape])
        if key not in blocks:
            init_block(self, element_ty, shape)
            tensor = object.__new__(core.tensor)
            init_tensor(tensor, None, self)
            blocks[key] = self.shape, str(self.shape), self.numel, tensor.shape, tensor.numel
        self.element_ty = element_ty
        self.shape, name, self.numel, self.tensor_shape, self.tensor_numel = blocks[key]
        self.name = f"<{name}, {element_ty}>"

    def make_tensor(self: Any, handle: Any, type: Any) -> None:
        if not type.is_block():
            init_tensor(self, handle, type)
            return
        self.handle, self.type, self.dtype = handle, type, type.element_ty
        self.shape, self.numel = type.tensor_shape, type.tensor_numel

    def broadcast_once(self: Any, lhs: Any, rhs: Any) -> tuple[Any, Any]:
        if lhs.type.is_block() and rhs.type.is_block() and lhs.type.shape is rhs.type.shape:
            return lhs, rhs
        return broadcast(self, lhs, rhs)

    core._unwrap_if_constexpr = unwrap_common
    core.block_type.__init__, core.tensor.__init__ = make_block, make_tensor
    TritonSemantic.broadcast_impl_value = broadcast_once


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
