"""DRY's fields, under llama.cpp's names."""

from typing import Annotated, Any

from msgspec import Meta

from frontend.api.parameters.grammar import GrammarFields
from frontend.api.parameters.logit_bias import MAX_INT32
from messages.ring.requests import Dry

MAX_BREAKERS = 64
DEFAULTS: dict[str, Any] = {
    "base": 1.75,
    "allowed_length": 2,
    "penalty_last_n": -1,
    "sequence_breakers": ("\n", ":", '"', "*"),
}

Multiplier = Annotated[float, Meta(ge=0, le=100)]
Base = Annotated[float, Meta(ge=1, le=100)]
Length = Annotated[int, Meta(ge=0, le=MAX_INT32)]
LastN = Annotated[int, Meta(ge=-1, le=MAX_INT32)]
Breakers = Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(max_length=MAX_BREAKERS)]


class DryFields(GrammarFields, frozen=True, kw_only=True):
    """Without `dry_multiplier` the others have no effect. A struct has one base, so these extend the grammar's."""

    dry_multiplier: Annotated[Multiplier | None, Meta(description="a number in [0, 100], 0 for no penalty")] = None
    dry_base: Annotated[Base | None, Meta(description="a number in [1, 100]")] = None
    dry_allowed_length: Annotated[Length | None, Meta(description=f"a whole number from 0 to {MAX_INT32}")] = None
    dry_penalty_last_n: Annotated[
        LastN | None, Meta(description=f"a whole number from 0 to {MAX_INT32}, or -1 for all tokens")
    ] = None
    dry_sequence_breakers: Annotated[
        Breakers | None, Meta(description=f"a list of up to {MAX_BREAKERS} strings, none of them empty")
    ] = None


def make_dry(fields: DryFields) -> Dry | None:
    """Returns the penalty that a request sets, `None` if it sets none."""
    if not fields.dry_multiplier:
        return None
    given: dict[str, Any] = {name: getattr(fields, f"dry_{name}") for name in DEFAULTS}
    values = {name: DEFAULTS[name] if value is None else value for name, value in given.items()}
    values["sequence_breakers"] = tuple(values["sequence_breakers"])
    return Dry(fields.dry_multiplier, **values)
