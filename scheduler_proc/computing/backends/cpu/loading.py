"""Makes runners on a CPU."""

from torch import Tensor

from messages.config.server import Config
from runtime.machine import CGROUP, MEMORY_INFO, available_memory_bytes
from scheduler_proc.computing.backends.cpu.device import CpuDevice
from scheduler_proc.computing.backends.cpu.forward_passes import CpuForwardPasses
from scheduler_proc.computing.backends.cpu.populate import PagePopulation
from scheduler_proc.computing.kv_cache.kv_tensors import KVTensors, share_of_memory
from scheduler_proc.computing.model.decoder import Decoder
from scheduler_proc.computing.report import Report
from scheduler_proc.computing.runner import MakeRunner, Runner
from scheduler_proc.computing.step.dummy_batch import plan_warm_up
from scheduler_proc.computing.step.shapes import StepLimits

WARM_UP_TOKENS = 8
"""Few: libraries are set up by the first, and the others only take time."""


class CpuRunnerFactory:
    """The `RunnerFactory` of the CPU."""

    def __init__(self, config: Config, decoder: Decoder, limits: StepLimits):
        self._config = config
        self._decoder = decoder
        self._limits = limits
        self.device = CpuDevice()

    def make_runner(self, cache: KVTensors) -> Runner:
        may_overlap = self._config.scheduling.overlap and self._config.scheduling.speculative not in ("draft", "mtp")
        passes = CpuForwardPasses(self._decoder, cache, self.device, self._limits, may_overlap=may_overlap)
        return Runner(self._decoder, self.device, passes, self._limits, cache.num_pages)

    def measure_cache_bytes(self, make_runner: MakeRunner, bytes_per_page: int) -> int:
        available_bytes = available_memory_bytes(MEMORY_INFO, CGROUP)
        return share_of_memory(self._config, available_bytes, self._limits.num_pages * bytes_per_page)

    def warm_up(self, runner: Runner, cache: KVTensors) -> str:
        hidden = [] if cache.hidden is None else [cache.hidden]  # may be another model's
        used = [tensor[:WARM_UP_TOKENS] for tensor in _tensors(cache) + hidden]
        used += [tensor[:1] for tensor in _states(cache)]
        before = [slots.clone() for slots in used]
        runner.run(plan_warm_up(self._config, min(WARM_UP_TOKENS, self._limits.max_num_batched_tokens)))
        for slots, content in zip(used, before, strict=True):
            slots.copy_(content)
        return ""

    def populate(self, cache: KVTensors, report: Report, *, is_file: bool) -> None:
        when, device = self._config.cache.kv_populate, self.device
        if tensors := _tensors(cache):
            device.population = PagePopulation(tensors, cache.num_pages, is_file)
        if states := _states(cache):
            device.slot_population = PagePopulation(states, len(states[0]), is_file, "recurrent states")
            device.slot_column = "state_slots"
        for population in filter(None, (device.population, device.slot_population)):
            if when == "eager":
                population.run(report)
            elif when == "background":
                population.start()


def _tensors(cache: KVTensors) -> list[Tensor]:
    return [part for stack in cache.tensors for part in stack]


def _states(cache: KVTensors) -> list[Tensor]:
    return [part for stack in cache.state_tensors for part in stack]
