"""The sampling parameters of a request: their names, ranges and defaults."""

import logging
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from messages.requests import SamplingParams

T = TypeVar("T")

MAX_INT32 = 2**31 - 1

Count = Annotated[int, Meta(ge=1, le=MAX_INT32)]
Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Temperature = Annotated[float, Meta(ge=0, le=2)]
TopP = Annotated[float, Meta(gt=0, le=1)]
TopK = Annotated[int, Meta(ge=-1, le=MAX_INT32)]
MinP = Annotated[float, Meta(ge=0, le=1)]
StopString = Annotated[str, Meta(min_length=1)]
StopStrings = Annotated[list[StopString], Meta(max_length=16)]
TokenId = Annotated[int, Meta(ge=0, le=MAX_INT32)]
Salt = Annotated[str, Meta(min_length=1, max_length=128)]

NOT_YET: dict[str, tuple[Any, ...]] = {
    "min_tokens": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
    "allowed_token_ids": (),
    "bad_words": ([],),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "prompt_logprobs": (),
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "priority": (0,),
    "timeout_s": (),
    "return_tokens_as_token_ids": (False,),
}
"""Parameters that are refused, each with the values that ask for nothing; null always does."""

log = logging.getLogger("sluice.frontend")


class SamplingFields(msgspec.Struct, frozen=True, kw_only=True):
    """What every endpoint that generates takes; `None` (absent or null) stands for the default."""

    max_tokens: Annotated[Count | None, Meta(description="a whole number from 1")] = None
    temperature: Annotated[Temperature | None, Meta(description="a number in [0, 2]")] = None
    top_p: Annotated[TopP | None, Meta(description="a number in (0, 1]")] = None
    top_k: Annotated[TopK | None, Meta(description="a whole number from 1, or 0 or -1 for all tokens")] = None
    min_p: Annotated[MinP | None, Meta(description="a number in [0, 1]")] = None
    seed: Annotated[Seed | None, Meta(description="a whole number in [-2**63, 2**63 - 1]")] = None
    stop: Annotated[StopString | StopStrings | None, Meta(description="a string or up to 16 strings, none empty")] = (
        None
    )
    stop_token_ids: Annotated[list[TokenId] | None, Meta(description="a list of token ids")] = None
    ignore_eos: Annotated[bool | None, Meta(description="true or false")] = None
    include_stop_str_in_output: Annotated[bool | None, Meta(description="true or false")] = None
    skip_special_tokens: Annotated[bool | None, Meta(description="true or false")] = None
    cache_salt: Annotated[Salt | None, Meta(description="a string of 1 to 128 characters")] = None


class SamplingDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """What holds where a request says nothing."""

    temperature: Temperature = 1.0
    top_p: TopP = 1.0
    top_k: TopK = 0
    min_p: MinP = 0.0


def sampling_defaults(of_model: dict[str, float]) -> SamplingDefaults:
    """Returns the defaults with those of the model's generation_config.json; those that cannot be used are logged."""
    used: dict[str, float] = {}
    for name, value in of_model.items():
        try:
            msgspec.convert({name: value}, SamplingDefaults, strict=False)
        except msgspec.ValidationError as error:
            log.warning("generation_config.json: %s %s is not used: %s", name, value, error)
        else:
            used[name] = value
            if name not in SamplingDefaults.__struct_fields__ and value not in NOT_YET.get(name, (value,)):
                log.warning("generation_config.json: %s %s is not used: it is not supported yet", name, value)
    return msgspec.convert(used, SamplingDefaults, strict=False)


def make_sampling_params(
    fields: SamplingFields, defaults: SamplingDefaults, *, max_tokens: int, seed: int
) -> SamplingParams:
    """Returns the parameters of one request; `max_tokens` and `seed` hold where it gives none."""
    stop = fields.stop if fields.stop is not None else []
    return SamplingParams(
        max_tokens=_given(fields.max_tokens, max_tokens),
        temperature=_given(fields.temperature, defaults.temperature),
        top_p=_given(fields.top_p, defaults.top_p),
        top_k=max(0, _given(fields.top_k, defaults.top_k)),
        min_p=_given(fields.min_p, defaults.min_p),
        seed=_given(fields.seed, seed),
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        stop_token_ids=tuple(fields.stop_token_ids or ()),
        ignore_eos=bool(fields.ignore_eos),
        include_stop_str_in_output=bool(fields.include_stop_str_in_output),
        skip_special_tokens=fields.skip_special_tokens is not False,
        cache_salt=fields.cache_salt or "",
    )


def _given(value: T | None, default: T) -> T:
    return default if value is None else value
