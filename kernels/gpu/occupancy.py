"""The number of programs of a compiled kernel that a streaming multiprocessor of a GPU runs side by side.

The rules of NVIDIA's occupancy calculator for compute capability 7.0 and later.
"""

from dataclasses import dataclass
from typing import Any

REGISTER_UNIT, WARP_UNIT, SHARED_UNIT = 8, 4, 128
"""The units in which registers per thread, warps and bytes of shared memory are allocated."""

RESERVED_BYTES = 1024
"""Shared memory reserved per program."""

MAX_PROGRAMS = 32
WARP_THREADS = 32


@dataclass(frozen=True)
class Processor:
    """The resources of a processor; the defaults are Hopper's."""

    num_registers: int = 65536
    shared_bytes: int = 228 << 10
    num_warps: int = 64


def processor_of(properties: Any) -> Processor:
    """Returns the processor of a device with these `torch.cuda.get_device_properties`."""
    return Processor(
        properties.regs_per_multiprocessor,
        properties.shared_memory_per_multiprocessor,
        properties.max_threads_per_multi_processor // WARP_THREADS,
    )


def count_side_by_side(registers: int, shared_bytes: int, num_warps: int, processor: Processor = Processor()) -> int:
    """Returns how many programs run side by side, at least 1; `registers` are per thread."""
    warp_registers = _round_up(registers, REGISTER_UNIT) * WARP_THREADS
    num_warps_by_registers = processor.num_registers // warp_registers // WARP_UNIT * WARP_UNIT
    program_bytes = _round_up(shared_bytes, SHARED_UNIT) + RESERVED_BYTES
    by_shared_memory = processor.shared_bytes // program_bytes
    return max(
        1, min(num_warps_by_registers // num_warps, by_shared_memory, processor.num_warps // num_warps, MAX_PROGRAMS)
    )


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
