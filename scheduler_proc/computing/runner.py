"""Runs planned steps on any device: launches a step, and returns its result on request."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np

from messages.ring.steps import Batch, ForwardOutput
from scheduler_proc.computing.device import Device, Fetched, Forward, ForwardPasses
from scheduler_proc.computing.kv_cache.kv_memory import KVMemory
from scheduler_proc.computing.model.adapters import HostAdapter
from scheduler_proc.computing.model.decoder import Decoder
from scheduler_proc.computing.sampling.plan import GREEDY, SamplingPlan, plan_sampling
from scheduler_proc.computing.sampling.results import Result, compute_result, read_result
from scheduler_proc.computing.step.rewritten_batches import with_known_tokens
from scheduler_proc.computing.step.shapes import StepLimits
from scheduler_proc.computing.tiers.tiered_pages import TieredPages

Publish = Callable[[Batch], None]

NO_TOKENS = np.empty(0, np.int32)
"""The result of a stage that does not sample."""


class StatePool(NamedTuple):
    """How many state slots there are, and how many pages take as much memory as a slot."""

    num_slots: int
    pages_per_slot: int


class LaunchedStep:
    """A step that has been launched."""

    def __init__(self, runner: "Runner", step_id: int, sampling: SamplingPlan, fetched: Fetched):
        self._runner = runner
        self._step_id = step_id
        self._sampling = sampling
        self._fetched = fetched

    @property
    def has_ended(self) -> bool:
        return self._fetched.has_ended

    def result(self) -> ForwardOutput:
        """Waits for this step and returns its result."""
        output = read_result(self._step_id, self._sampling, self._fetched.wait())
        self._runner.next_tokens = output.next_tokens
        return output


class PublishedStep:
    """A step that other stages compute already; this one computes when the result is requested."""

    has_ended = False

    def __init__(self, launch: Callable[[], LaunchedStep]):
        self._launch = launch

    def result(self) -> ForwardOutput:
        """Waits for the stages before this one, computes the step and returns its result."""
        return self._launch().result()


@dataclass(eq=False)
class Runner:
    """Launches steps in order. The result of a step is a function of its `Batch`, the KV cache, and the tokens of the
    previous step that the batch refers to.

    `degraded` reports to operators what is missing or slower than it should be; `placement` has the device and the
    formats. `publish` makes the other ranks run a step: with several stages as it is launched, else as it is about to
    run here. `windows`: the window of the layers with window pages, and the number of these. `states`: the slots for
    recurrent states, if layers have any.
    """

    _decoder: Decoder
    _device: Device
    forward_passes: ForwardPasses
    _limits: StepLimits
    num_pages: int
    degraded: str = ""
    placement: dict[str, str] = field(default_factory=dict)
    page_memory: KVMemory | None = None
    page_store: TieredPages | None = None
    draft_runner: "Runner | None" = None
    publish: Publish | None = None
    windows: tuple[int, int] | None = None
    states: StatePool | None = None

    def __post_init__(self):
        decoder = self._decoder
        self.max_num_batched_tokens = self._limits.max_num_batched_tokens
        self.can_overlap = self.forward_passes.last_tokens is not None
        self.can_plan_ahead = self.forward_passes.can_plan_ahead
        self.next_tokens = b""
        """The tokens of the step whose result was requested last."""
        self.adapters = decoder.adapters
        """What the model has for LoRA adapters; `None`: its rows have none."""
        self.span_rows = decoder.span_rows
        """Takes the rows of spans in prompts; `None`: prompts have none."""
        place = decoder.pipeline.place
        self._is_last, self.num_stages = place.is_last, place.num_stages
        """The stages that compute a step one after another; as many steps are computed at a time."""
        self._vocab_size = decoder.model.vocab_size

    def memory_gauges(self) -> dict[str, float]:
        """Returns the bytes of weights and KV cache, and the times of this stage if there are several.

        Without a file in memory, the whole cache counts as resident.
        """
        memory, num_bytes = self.page_memory, self.forward_passes.cache.num_bytes
        sizes = self._decoder.num_weight_bytes, num_bytes, num_bytes if memory is None else memory.num_resident_bytes
        drafts = (0, 0, 0) if self.draft_runner is None else self.draft_runner.memory_gauges().values()
        names = "weights_bytes", "kv_cache_bytes", "kv_cache_resident_bytes"
        gauges = {name: size + draft for name, size, draft in zip(names, sizes, drafts, strict=True)}
        if self.num_stages > 1:
            gauges |= {"layers": len(self._decoder.model.held), **self._decoder.pipeline.gauges()}
        return gauges

    def launch(self, batch: Batch) -> LaunchedStep | PublishedStep:
        """Launches the step after all previous ones. Raises if it cannot be launched.

        Without `can_overlap` its result must be requested before the next launch, which may overwrite it. With several
        stages results may be requested later, in the order of launches.
        """
        if self.num_stages == 1 or self.publish is None:
            return self._launch(batch)
        self.publish(batch)
        return PublishedStep(partial(self._launch, batch))

    def _launch(self, batch: Batch) -> LaunchedStep:
        if batch.future_token_indices and not self.can_overlap:
            batch = with_known_tokens(batch, self.next_tokens)
        for feature in self._limits.required:
            assert feature.is_in(batch), f"a step has no columns of {feature.name}"
        sampling = plan_sampling(batch, self._vocab_size) if self._is_last else GREEDY
        forward = self.forward_passes.prepare(batch, sampling.columns)
        fetched = self._device.submit(partial(self._compute, batch, forward, sampling))
        return LaunchedStep(self, batch.step_id, sampling, fetched)

    def read_adapter(self, path: str) -> HostAdapter:
        """Returns the adapter in the directory `path`; runs in any thread. Raises `AdapterError`."""
        assert self.adapters is not None
        return self.adapters.read(path)

    def place_adapter(self, slot: int, adapter: HostAdapter) -> None:
        """Puts the adapter into the slot, which no row of a launched step has, for the steps that follow."""
        assert self.adapters is not None
        self.adapters.place(slot, adapter)

    def run(self, batch: Batch) -> ForwardOutput:
        """Runs the step and waits for its result; the cache then holds its K and V."""
        return self.launch(batch).result()

    def _compute(self, batch: Batch, forward: Forward, sampling: SamplingPlan) -> Result:
        try:
            if self.publish is not None and self.num_stages == 1:
                self.publish(batch)
            forwarded = forward()
            if not self._is_last:
                return NO_TOKENS
            result = compute_result(self._decoder, forwarded, sampling, self._device.max_logits)
        except Exception as error:
            everyone = self._decoder.pipeline.everyone
            if everyone.size > 1:  # the others may be waiting for this rank in mid-step
                raise SystemExit(f"a step failed on rank {everyone.rank}: {error!r}") from error
            raise
        last_tokens = self.forward_passes.last_tokens
        if last_tokens is not None and not isinstance(result, np.ndarray):
            # A step that samples more tokens than it has rows is never followed by one that refers to them.
            tokens_S = result[0][: len(last_tokens)]
            last_tokens[: len(tokens_S)].copy_(self._decoder.parallel.broadcast(tokens_S))
        return result


MakeRunner = Callable[[int], Runner]
"""Takes the number of pages of the runner's cache."""
