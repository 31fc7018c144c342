"""All optional parts of steps."""

from typing import Any

from scheduler_proc.computing.step.features.adapters import ADAPTERS
from scheduler_proc.computing.step.features.axes import AXES
from scheduler_proc.computing.step.features.kept_hidden import KEPT_HIDDEN
from scheduler_proc.computing.step.features.last_keys import LAST_KEYS
from scheduler_proc.computing.step.features.placed_rows import PLACED_ROWS
from scheduler_proc.computing.step.features.states import STATES
from scheduler_proc.computing.step.features.token_types import TYPES
from scheduler_proc.computing.step.features.windows import WINDOWS
from scheduler_proc.computing.step.inputs import StepFeature

FEATURES: tuple[StepFeature[Any], ...] = (WINDOWS, STATES, KEPT_HIDDEN, ADAPTERS, TYPES, PLACED_ROWS, AXES, LAST_KEYS)
