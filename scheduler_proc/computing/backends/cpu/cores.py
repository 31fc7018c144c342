"""The cores of a process that computes on the CPU, and the dtype they compute in."""

import logging

import torch

from messages.errors import BootError
from runtime.machine import CPU_INFO, computes_bfloat16, multiplies_bfloat16_faster
from runtime.numa import Share, allowed_cpus, divide, pin, read_nodes

log = logging.getLogger("sluice.cores")


def auto_dtype() -> torch.dtype:
    """Returns what `--dtype auto` means on this processor."""
    return torch.bfloat16 if computes_bfloat16(CPU_INFO) else torch.float32


def fastest_product_dtype() -> torch.dtype:
    """Returns the dtype of the fastest products of large matrices on this processor."""
    return torch.bfloat16 if multiplies_bfloat16_faster(CPU_INFO) else torch.float32


def find_share(num_engines: int, engine: int, num_ranks: int = 1, rank: int = 0) -> Share:
    """Returns the cores of one rank of an engine if this machine has `num_engines` engines or more."""
    return divide(read_nodes(allowed_cpus()), num_engines * num_ranks, (engine - 1) * num_ranks + rank + 1)


def set_threads(
    cpu_threads: int,
    num_engines: int = 1,
    engine: int = 1,
    num_ranks: int = 1,
    rank: int = 0,
    *,
    may_wait: bool = False,
) -> None:
    """Makes torch compute with `cpu_threads` threads; 0: one per core, shared equally by all ranks of all engines.

    Pins the process to its NUMA node if there are several. Raises `BootError` if the schedulers up to number `engine`
    would have more threads than there are cores; with `may_wait`, rank 0 warns instead.
    """
    share = find_share(num_engines, engine, num_ranks, rank)
    num_cores = len(share.cpus)
    cpu_threads = cpu_threads or max(1, num_cores // share.count(num_engines * num_ranks))
    num_processes = share.count(max(num_engines, engine) * num_ranks)
    if num_processes > 1 and num_processes * cpu_threads > num_cores:
        ranks = f" of {num_ranks} ranks" if num_ranks > 1 else ""
        node = " on its NUMA node" if share.num_groups > 1 else ""
        text = (
            f"engine {engine} finds too few cores{node}: {max(1, num_processes // num_ranks)} engines{ranks} of "
            f"{cpu_threads} threads each need {num_processes * cpu_threads}, and there are {num_cores}"
        )
        if not may_wait:
            raise BootError(f"{text}; lower --data-parallel, --tensor-parallel or --cpu-threads")
        if rank == 0:
            log.warning("%s: stages wait for each other", text)
    pin(share)
    torch.set_num_threads(cpu_threads)
