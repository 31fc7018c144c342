"""Facts about a server: its settings, and measured steps from which their cost model is fitted; one JSON file."""

from pathlib import Path
from typing import Any, Literal, Self

import msgspec

from extras.whatif.cost_model import MeasuredStep, size_of_step
from messages.config.server import Config
from messages.errors import UsageError
from messages.ring.steps import Batch
from scheduler_proc.step_times import StepTimes

PageSize = Literal[1, 2, 4, 8, 16, 32, 64, 128]


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """The settings under which `steps` were measured, which are also the defaults of what is asked.

    `pipeline_s`: what a request takes outside of the scheduler, from HTTP to its first token's event. `jitter_s`: by
    how much more or less than usual the tokens of each recorded step took on their way back.
    """

    model: str
    can_overlap: bool
    max_model_len: int
    block_size: PageSize
    num_pages: int
    max_num_seqs: int
    max_num_batched_tokens: int
    enable_prefix_caching: bool = True
    num_speculative_tokens: int = 0
    """The maximum of draft tokens that a row gets by lookup; 0 if the server has no lookup."""
    pipeline_s: float = 0.0
    jitter_s: tuple[float, ...] = (0.0,)
    steps: list[MeasuredStep]

    @classmethod
    def of(cls, config: Config, **measured: Any) -> Self:
        """Returns what was `measured` with the settings of the server that it was measured on."""
        scheduling = config.scheduling
        return cls(
            model=", ".join(config.facts.served_names),
            max_model_len=config.facts.max_model_len,
            block_size=config.cache.block_size,
            max_num_seqs=scheduling.max_num_seqs,
            enable_prefix_caching=config.cache.enable_prefix_caching,
            num_speculative_tokens=scheduling.num_speculative_tokens * (scheduling.speculative in ("auto", "ngram")),
            **measured,
        )


class StepRecorder(StepTimes):
    """Records the size and the time of each step."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[MeasuredStep] = []

    def add(self, batch: Batch, seconds: float) -> None:
        self.steps.append(MeasuredStep(size_of_step(batch), seconds))


def read_calibration(path: Path) -> Calibration:
    """Returns the calibration that `launch.py calibrate` wrote. Raises `UsageError`."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Calibration)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read ({error.strerror}); `launch.py calibrate --out {path}` measures steps"
        ) from None
    except msgspec.MsgspecError as error:
        raise UsageError(f"{path} is not what `launch.py calibrate` writes: {error}") from None
