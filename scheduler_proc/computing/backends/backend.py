"""What loading and steps need from a kind of device. Each kind has a folder here; `registry.py` chooses one."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

import torch

from messages.config.server import CacheConfig, Config, ModelConfig
from scheduler_proc.computing.device import Device
from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.kv_cache.kv_tensors import KVTensors
from scheduler_proc.computing.model.blocks.weights import Weights
from scheduler_proc.computing.model.decoder import Decoder
from scheduler_proc.computing.model.description import ModelDescription
from scheduler_proc.computing.parallel import Meeting, ParallelGroup
from scheduler_proc.computing.placement import Placement
from scheduler_proc.computing.report import Report
from scheduler_proc.computing.ring_group import Neighbours
from scheduler_proc.computing.runner import MakeRunner, Runner
from scheduler_proc.computing.step.shapes import StepLimits


class Place(NamedTuple):
    """The place of this process among all computing processes.

    The ranks of an engine meet through `ranks_file`; if some are on other machines, each has a way to the next one
    instead. Engines share the weights of a rank through `weights_file`.
    """

    engine: int
    rank: int = 0
    ranks_file: Path | None = None
    weights_file: Path | None = None
    neighbours: Neighbours | None = None


class ModelParts(NamedTuple):
    """A model with its weights, and how it is run."""

    config: Config
    decoder: Decoder
    limits: StepLimits
    placement: Placement


class SharedWeights:
    """Memory for a model's weights that all schedulers of a run may have in common; by default each has its own."""

    def find(self) -> Weights | None:
        """Returns the weights if another scheduler has made them."""
        return None

    def load(self, make: Callable[[], Weights], report: Report, count_bytes: Callable[[], int]) -> Weights:
        """Returns the weights, which `make` makes unless another scheduler has.

        `count_bytes` returns the bytes that suffice for everything that `make` allocates, 0 if that is not known.
        """
        return make()

    def free(self) -> None:
        """Frees the memory if no scheduler uses it: the model is in memory of its own."""


class OwnWeights(SharedWeights):
    """`SharedWeights` that are not shared."""


class RunnerFactory(Protocol):
    """Makes the runners of a loaded model on one device."""

    @property
    def device(self) -> Device: ...

    def make_runner(self, cache: KVTensors) -> Runner: ...

    def measure_cache_bytes(self, make_runner: MakeRunner, bytes_per_page: int) -> int:
        """Returns the maximum size of the KV cache in bytes. Raises `BootError` if not even one step fits."""
        ...

    def warm_up(self, runner: Runner, cache: KVTensors) -> str:
        """Runs small steps; returns what is missing or slower than it should be. The cache keeps its content."""
        ...

    def populate(self, cache: KVTensors, report: Report, *, is_file: bool) -> None:
        """Gets the memory of the cache as specified by `--kv-populate`; `is_file`: it belongs to a file in memory."""


class Backend(Protocol):
    """A kind of device."""

    name: str
    """Its value of `--device`."""
    default_step_tokens: int
    """The default of `--max-num-batched-tokens`."""
    keeps_memory: bool
    """Weights and KV cache can be in files in memory, which outlive the process."""

    def is_available(self) -> bool: ...

    def find_placement(self, model: ModelConfig, cache: CacheConfig, hf_config: HfConfig, number: int = 1) -> Placement:
        """Resolves `--dtype`, `--quantization` and `--kv-cache-dtype`, and the device of rank `number` of all engines.

        Raises `BootError` for values that the device does not support.
        """
        ...

    def product_dtype(self, placement: Placement) -> torch.dtype:
        """Returns the dtype of the fastest products of a weight with many rows, as in vision towers and encoders."""
        ...

    def check_model(self, config: Config, model: ModelDescription | None) -> None:
        """Raises `BootError` if the device cannot compute a model as flags ask; `None`: one of transformers' code."""

    def bind(self, config: Config, placement: Placement, place: Place) -> None:
        """Gives this process its GPU, or its share of the cores. Raises `BootError` for flags of other devices."""

    def load_kernels(self, model: ModelConfig, report: Report) -> None: ...

    def join_ranks(self, meeting: Meeting, name: str, rank: int, size: int) -> ParallelGroup:
        """Connects this rank with the others of the group of this name."""
        ...

    def free_bytes(self, config: Config, placement: Placement) -> int:
        """Returns the memory that weights, steps and the KV cache may take together."""
        ...

    def step_bytes(self, model: ModelDescription, placement: Placement, limits: StepLimits) -> int | None:
        """Returns the memory of the largest step; `None` if only running it shows that."""
        ...

    def cache_bytes(self, config: Config, left_bytes: int, needed_bytes: int) -> int:
        """Returns the default size of the KV cache if weights and steps leave `left_bytes`.

        A request of full length takes `needed_bytes`.
        """
        ...

    def open_weights(self, config: Config, place: Place, identity: bytes) -> SharedWeights:
        """Returns the memory for weights of this identity. Raises `BootError`."""
        ...

    def make_factory(self, model: ModelParts, report: Report, main: RunnerFactory | None = None) -> RunnerFactory:
        """Returns the factory of a model's runners. A draft model's steps run in order with those of `main`."""
        ...
