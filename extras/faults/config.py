"""The flag of fault injection."""

from typing import Annotated, ClassVar

from messages.config.flag import Flag
from messages.config.server import ExtraConfig


class FaultsConfig(ExtraConfig, frozen=True, kw_only=True):
    """Fault injection"""

    EXTRA: ClassVar[str] = "faults"

    enable_fault_injection: Annotated[
        bool, Flag("allow `launch.py inject` to kill processes and drop frames, for testing")
    ] = False
