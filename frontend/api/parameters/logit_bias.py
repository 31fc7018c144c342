"""`logit_bias`: OpenAI's object of token ids, or llama.cpp's list, which also has texts and bans."""

from typing import Annotated, NamedTuple

from msgspec import Meta

from messages.errors import bad_request

MAX_BIASES = 1024
MAX_INT32 = 2**31 - 1

TokenId = Annotated[int, Meta(ge=0, le=MAX_INT32)]
NonEmpty = Annotated[str, Meta(min_length=1)]
Bias = Annotated[float, Meta(ge=-100, le=100)]
BiasObject = Annotated[dict[TokenId, Bias], Meta(max_length=MAX_BIASES)]
BiasList = Annotated[list[tuple[TokenId | NonEmpty, Bias | bool]], Meta(max_length=MAX_BIASES)]
BIAS_TEXT = (
    f"an object of up to {MAX_BIASES} token ids (0 to {MAX_INT32}), each with a number in [-100, 100], or a list of up "
    f"to {MAX_BIASES} pairs [token id or text, number or false]"
)


class LogitBias(NamedTuple):
    """`texts` apply to the tokens that they are encoded in. A bias of `None` bans."""

    by_id: dict[int, float]
    banned_ids: list[int]
    texts: list[tuple[str, float | None]]


def read_bias(provided: BiasObject | BiasList | None) -> LogitBias:
    """Returns the biases of a request. Biases of one token add up, as in llama.cpp. Raises `RequestError` (400)."""
    found = LogitBias({}, [], [])
    for token, value in provided.items() if isinstance(provided, dict) else provided or ():
        if value is True:
            raise bad_request("logit_bias must have false, which bans, or a number, got true", "logit_bias")
        if isinstance(token, str):
            found.texts.append((token, None if value is False else value))
        elif value is False:
            found.banned_ids.append(token)
        else:
            found.by_id[token] = found.by_id.get(token, 0.0) + value
    return found
