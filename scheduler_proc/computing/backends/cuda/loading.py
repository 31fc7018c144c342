"""Makes runners on a GPU: measures the memory of steps and graphs, and captures the graphs."""

import gc
import logging
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import torch

from kernels.gpu.launch_table import fix_launches
from kernels.gpu.triton_kernels import leave_out_failed, load_triton_kernels
from kernels.plans.decode_work import DecodeShape
from messages.errors import BootError
from scheduler_proc.computing.backends.backend import ModelParts
from scheduler_proc.computing.backends.cuda.attention_plans import AttentionPlans
from scheduler_proc.computing.backends.cuda.device import CudaDevice, reason_of
from scheduler_proc.computing.backends.cuda.forward_passes import GpuForwardPasses
from scheduler_proc.computing.kv_cache.kv_tensors import GIB, KVTensors, pages_per_context
from scheduler_proc.computing.model.expert_description import find_host_layers
from scheduler_proc.computing.report import Report
from scheduler_proc.computing.runner import MakeRunner, Runner
from scheduler_proc.computing.step.dummy_batch import plan_dummy_batch, plan_warm_ups

Result = TypeVar("Result")

log = logging.getLogger("sluice.gpu_loading")


class GpuRunnerFactory:
    """The `RunnerFactory` of a GPU. Raises `BootError` if memory does not suffice."""

    def __init__(self, model: ModelParts, device: CudaDevice, report: Report):
        self._config, self._decoder, self._limits, _ = model
        self.device = device
        self._report = report
        self._degraded: list[str] = []
        self._attention: AttentionPlans | None = None
        self._is_fixed = model.config.model.deterministic
        fix_launches(self._is_fixed)
        if _load_kernels(device):
            self._attention = self._try(partial(_make_attention, model, device))
        elif self._is_fixed:
            raise BootError("--deterministic needs Triton's kernels: `pip install triton` brings them to Linux")
        else:
            self._degraded.append("Triton cannot be loaded, so plain torch computes")
        self._can_capture = not model.config.model.enforce_eager

    def make_runner(self, cache: KVTensors) -> Runner:
        may_overlap = self._config.scheduling.overlap and not find_host_layers(self._decoder.model.layers)
        passes = GpuForwardPasses(self._decoder, cache, self.device, self._limits, self._attention, may_overlap)
        return Runner(self._decoder, self.device, passes, self._limits, cache.num_pages)

    def measure_cache_bytes(self, make_runner: MakeRunner, bytes_per_page: int) -> int:
        """Returns the bytes that a KV cache may take.

        Runs a step of the largest size and captures the largest graphs, with the smallest cache. The graphs hold the
        addresses of that cache, so they cannot be kept.
        """
        self._report("measuring the memory of a step", None)
        context_pages = pages_per_context(self._config)
        runner = make_runner(context_pages)
        self.device.release_unused()  # cached while loading
        self._run_full_step(runner)
        # Memory of the step stays cached, so it counts as used.
        free_bytes, total_bytes = self.device.memory()
        used_bytes = total_bytes - free_bytes - context_pages * bytes_per_page
        graph_bytes = self._capture(runner, is_rehearsal=True)
        del runner
        gc.collect()
        self.device.release_unused()
        left_bytes = int(total_bytes * self._config.cache.gpu_memory_utilization) - used_bytes - graph_bytes
        log.info(
            "GPU memory: %.2f GiB in all, %.2f for weights and steps, %.2f for graphs; %.2f are left for the KV cache",
            *(num_bytes / GIB for num_bytes in (total_bytes, used_bytes, graph_bytes, left_bytes)),
        )
        return left_bytes

    def warm_up(self, runner: Runner, cache: KVTensors) -> str:
        """Compiles the kernels and captures the graphs."""
        for batch in plan_warm_ups(self._config, runner.max_num_batched_tokens):
            self._try(partial(runner.run, batch))
        self._capture(runner)
        assert isinstance(runner.forward_passes, GpuForwardPasses)
        if runner.forward_passes.host is not None:
            runner.forward_passes.host.is_loading = False
        return "; ".join(self._degraded)

    def populate(self, cache: KVTensors, report: Report, *, is_file: bool) -> None:
        """All memory of the cache is already there."""

    def _try(self, work: Callable[[], Result]) -> Result:
        """Returns the result of `work`; if a Triton kernel fails, tries again without that kernel.

        Raises all other errors. Each attempt has one kernel fewer, so the attempts end.
        """
        while True:
            try:
                return work()
            except Exception as error:  # of any type: Triton's own, its compilers', CUDA's
                name = leave_out_failed(error)
                if name is None:
                    raise
                reason = reason_of(error)
                if self._is_fixed:
                    raise BootError(
                        f"--deterministic: the Triton kernel of {name} cannot be compiled or launched: {reason}. "
                        "Leave the flag out, and plain torch computes it; another version of Triton may compile it"
                    ) from error
                log.warning(
                    "the Triton kernel of %s cannot be compiled or launched, so plain torch computes it, which is "
                    "slower: %s. Another version of Triton or of the driver may compile it",
                    name,
                    reason,
                    exc_info=error,
                )
                self._degraded.append(f"plain torch computes {name}: {reason}")

    def _capture(self, runner: Runner, is_rehearsal: bool = False) -> int:
        """Returns the bytes that the graphs take; if a forward pass to capture fails, capturing is not tried again."""
        if not self._can_capture:
            return 0
        assert isinstance(runner.forward_passes, GpuForwardPasses)
        try:
            return self._try(partial(runner.forward_passes.capture, self._report, is_rehearsal))
        except BootError:
            raise
        except Exception as error:  # torch's, CUDA's or Triton's
            self._can_capture = False
            reason = reason_of(error)
            log.warning(
                "CUDA graphs cannot be captured, so steps are launched operation by operation, which is slower: %s "
                "Where memory is short, lower --gpu-memory-utilization or --max-num-seqs; --enforce-eager does not try",
                reason,
                exc_info=None if isinstance(error, torch.OutOfMemoryError) else error,
            )
            self._degraded.append(f"no CUDA graphs: {reason}")
            return 0

    def _run_full_step(self, runner: Runner) -> None:
        num_tokens, config = runner.max_num_batched_tokens, self._config
        rows, longest = config.scheduling.max_num_seqs, config.facts.max_model_len
        try:
            batch = plan_dummy_batch(num_tokens, rows, longest, config.cache.block_size, config.facts.vocab_size)
            self._try(partial(runner.run, batch))
        except torch.OutOfMemoryError as error:
            raise BootError(
                f"a step of {num_tokens} tokens does not fit into the memory of {self.device.torch_device} next to the "
                f"weights: {str(error).splitlines()[0]} Lower --max-num-batched-tokens, --max-num-seqs or "
                "--max-model-len"
            ) from None


def _load_kernels(device: CudaDevice) -> bool:
    """Loads the Triton kernels; False, with a warning, if that fails: torch computes instead."""
    try:
        load_triton_kernels(device.torch_device.type)
    except ImportError as error:
        log.warning(
            "Triton cannot be loaded (%s), so plain torch computes, without CUDA graphs and without overlapped steps: "
            "many times slower. `pip install triton` brings it to Linux",
            error,
        )
        return False
    return True


def _make_attention(model: ModelParts, device: CudaDevice) -> AttentionPlans:
    cache, decoder = model.config.cache, model.decoder
    values = cache.block_size, decoder.activation_dtype, model.placement.kv_codes
    kinds = ((mixer.kind, mixer.latent_rank) for mixer in decoder.model.mixers)
    shapes = {kind: DecodeShape(*kind[:-1], *values, rank) for kind, rank in kinds if kind is not None}
    max_rows, shares = model.config.scheduling.max_num_seqs, cache.shared_prefix_attention
    return AttentionPlans(shapes, max_rows, shares, device.torch_device)
