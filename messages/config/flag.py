"""What makes a field of the configuration a flag: `Annotated[int, Flag("…")]`, with the ranges that several have."""

from typing import Annotated

import msgspec
from msgspec import Meta

PositiveInt = Annotated[int, Meta(ge=1)]
NonNegativeInt = Annotated[int, Meta(ge=0)]
UpTo64 = Annotated[int, Meta(ge=1, le=64)]
PositiveFloat = Annotated[float, Meta(gt=0)]
NonNegativeFloat = Annotated[float, Meta(ge=0)]


class Flag(msgspec.Struct, frozen=True):
    """The help text of a flag, with the unit of its value."""

    text: str
    metavar: str = ""
    """The name of its value in the help text, by default one for its type."""
    const: str | None = None
    """The value of the flag without a value."""
    is_short: bool = False
    """`--help` shows it, although it is an extra's (`SHORT_HELP`)."""
    is_hidden: bool = False
    """The help text leaves it out."""
