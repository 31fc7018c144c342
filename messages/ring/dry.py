"""The DRY penalty of a request."""

import msgspec

from messages.columns import Int32s


class Dry(msgspec.Struct, frozen=True, array_like=True):
    """The DRY penalty ("don't repeat yourself") against repeated sequences.

    If the last n tokens (n >= `allowed_length`) also occur earlier in the text, the logit of the token that followed
    them there is lowered by `multiplier * base ** (n - allowed_length)`. Only the last `penalty_last_n` tokens count
    (-1: all). No repetition extends across one of `breaker_ids` (int32), which the tokenizer derives from
    `sequence_breakers`.
    """

    multiplier: float
    base: float
    allowed_length: int
    penalty_last_n: int
    sequence_breakers: tuple[str, ...]
    breaker_ids: Int32s = b""
