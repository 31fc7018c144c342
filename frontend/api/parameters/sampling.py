"""The sampling parameters of a request: their names, ranges and defaults."""

import logging
from collections.abc import Iterable
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from frontend.api.parameters.adapter_names import find_adapter, salt_for
from frontend.api.parameters.grammar import GrammarFields, make_grammar
from frontend.api.parameters.logit_bias import (
    BIAS_TEXT,
    MAX_BIASES,
    MAX_INT32,
    BiasList,
    BiasObject,
    NonEmpty,
    TokenId,
    read_bias,
)
from messages.columns import pack_float32, pack_int32
from messages.config.server import CHAT_SAMPLING, ModelFacts
from messages.errors import bad_request
from messages.ring.dry import Dry
from messages.ring.requests import SamplingParams

MAX_LOGPROBS = 20
MAX_STOPS = 64
MAX_STOP_IDS = 1024
MAX_BREAKERS = 64
MAX_TEXT_CHARS = 32_768
"""Total length of the strings in one field; the tokenizer or the detokenizer processes them for every choice."""
MAX_REPETITION_PENALTY = 1e6
"""Together with its reciprocal, the range in which float32 logits stay finite; beyond it the same tokens win."""

Count = Annotated[int, Meta(ge=0, le=MAX_INT32)]
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Temperature = Annotated[float, Meta(ge=0, le=2)]
PositiveProbability = Annotated[float, Meta(gt=0, le=1)]
CountOrAll = Annotated[int, Meta(ge=-1, le=MAX_INT32)]
Probability = Annotated[float, Meta(ge=0, le=1)]
TopNSigma = Annotated[float, Meta(ge=-1, le=100)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
RepetitionPenalty = Annotated[float, Meta(gt=0)]
StopStrings = Annotated[list[NonEmpty], Meta(max_length=MAX_STOPS)]
TokenIds = Annotated[list[TokenId], Meta(min_length=1)]
BadWords = Annotated[list[NonEmpty], Meta(max_length=MAX_BIASES)]
DryMultiplier = Annotated[float, Meta(ge=0, le=100)]
DryBase = Annotated[float, Meta(ge=1, le=100)]
DryBreakers = Annotated[list[NonEmpty], Meta(max_length=MAX_BREAKERS)]
Salt = Annotated[str, Meta(min_length=1, max_length=128)]
Seconds = Annotated[float, Meta(gt=0)]

AT_LEAST_ONE_TEXT = f"a whole number from 1 to {MAX_INT32}"
TOKEN_IDS_TEXT = f"a list of token ids (whole numbers from 0 to {MAX_INT32})"
INT64_TEXT = "a whole number in [-2**63, 2**63 - 1]"

Switch = Annotated[bool | None, Meta(description="true or false")]
AtLeastOne = Annotated[Annotated[int, Meta(ge=1, le=MAX_INT32)] | None, Meta(description=AT_LEAST_ONE_TEXT)]
NumLogprobs = Annotated[
    Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None, Meta(description=f"a whole number from 0 to {MAX_LOGPROBS}")
]

UNCHANGED = (
    *("temperature", "top_p", "top_k", "min_p", "typical_p", "xtc_probability", "xtc_threshold", "repetition_penalty"),
    *("presence_penalty", "frequency_penalty", "min_tokens", "seed", "priority", "cache_salt", "ignore_eos"),
    *("include_stop_str_in_output", "skip_special_tokens"),
)
"""Fields of the body that are fields of `SamplingParams`, with its defaults if the model has none."""

log = logging.getLogger("sluice.frontend")


class SamplingFields(GrammarFields, frozen=True, kw_only=True):
    """The sampling fields of every endpoint that generates. `None` (absent or null) means the default.

    A struct has one base, so these extend the grammar's. The DRY fields have llama.cpp's names.
    """

    dry_multiplier: Annotated[DryMultiplier | None, Meta(description="a number in [0, 100], 0 for no penalty")] = None
    dry_base: Annotated[DryBase | None, Meta(description="a number in [1, 100]")] = None
    dry_allowed_length: Annotated[Count | None, Meta(description=f"a whole number from 0 to {MAX_INT32}")] = None
    dry_penalty_last_n: Annotated[
        CountOrAll | None, Meta(description=f"a whole number from 0 to {MAX_INT32}, or -1 for all tokens")
    ] = None
    dry_sequence_breakers: Annotated[
        DryBreakers | None, Meta(description=f"a list of up to {MAX_BREAKERS} strings, none of them empty")
    ] = None
    max_tokens: Annotated[Count | None, Meta(description=AT_LEAST_ONE_TEXT)] = None
    min_tokens: Annotated[Count | None, Meta(description=f"a whole number from 0 to {MAX_INT32}")] = None
    temperature: Annotated[Temperature | None, Meta(description="a number in [0, 2]")] = None
    top_p: Annotated[PositiveProbability | None, Meta(description="a number in (0, 1]")] = None
    top_k: Annotated[
        CountOrAll | None, Meta(description=f"a whole number from 1 to {MAX_INT32}, or 0 or -1 for all tokens")
    ] = None
    min_p: Annotated[Probability | None, Meta(description="a number in [0, 1]")] = None
    top_n_sigma: Annotated[
        TopNSigma | None, Meta(description="a number from 0 to 100, or -1; 0 and -1 for all tokens")
    ] = None
    typical_p: Annotated[PositiveProbability | None, Meta(description="a number in (0, 1]")] = None
    xtc_probability: Annotated[Probability | None, Meta(description="a number in [0, 1]")] = None
    xtc_threshold: Annotated[Probability | None, Meta(description="a number in [0, 1]")] = None
    presence_penalty: Annotated[Penalty | None, Meta(description="a number in [-2, 2]")] = None
    frequency_penalty: Annotated[Penalty | None, Meta(description="a number in [-2, 2]")] = None
    repetition_penalty: Annotated[RepetitionPenalty | None, Meta(description="a number above 0")] = None
    seed: Annotated[Int64 | None, Meta(description=INT64_TEXT)] = None
    stop: Annotated[
        NonEmpty | StopStrings | None, Meta(description=f"a string or up to {MAX_STOPS} strings, none empty")
    ] = None
    stop_token_ids: Annotated[list[TokenId] | None, Meta(description=TOKEN_IDS_TEXT)] = None
    ignore_eos: Switch = None
    include_stop_str_in_output: Switch = None
    skip_special_tokens: Switch = None
    logit_bias: Annotated[BiasObject | BiasList | None, Meta(description=BIAS_TEXT)] = None
    allowed_token_ids: Annotated[TokenIds | None, Meta(description=f"{TOKEN_IDS_TEXT}, not empty")] = None
    bad_words: Annotated[
        BadWords | None, Meta(description=f"a list of up to {MAX_BIASES} strings, none of them empty")
    ] = None
    prompt_logprobs: NumLogprobs = None
    priority: Annotated[Int64 | None, Meta(description=INT64_TEXT)] = None
    cache_salt: Annotated[Salt | None, Meta(description="a string of 1 to 128 characters")] = None
    timeout_s: Annotated[Seconds | None, Meta(description="a number of seconds above 0")] = None
    return_token_ids: Switch = None
    return_tokens_as_token_ids: Switch = None
    sampling_defaults: Annotated[Literal["model", "chat"] | None, Meta(description='"model" or "chat"')] = None
    """For a model without defaults of its own: 1.0 and off as in OpenAI's API, or those of `CHAT_SAMPLING`."""


DRY_DEFAULTS: dict[str, Any] = {
    "base": 1.75,
    "allowed_length": 2,
    "penalty_last_n": -1,
    "sequence_breakers": ("\n", ":", '"', "*"),
}
"""llama.cpp's."""


class SamplingDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """The values for fields that a request does not set."""

    temperature: Temperature = 1.0
    top_p: PositiveProbability = 1.0
    top_k: CountOrAll = 0
    min_p: Probability = 0.0
    repetition_penalty: RepetitionPenalty = 1.0


def sampling_defaults(of_model: dict[str, float]) -> SamplingDefaults:
    """Returns the defaults, updated from the model's generation_config.json; invalid values are logged and ignored."""
    used: dict[str, float] = {}
    for name, value in of_model.items():
        try:
            msgspec.convert({name: value}, SamplingDefaults, strict=False)
        except msgspec.ValidationError as error:
            log.warning("generation_config.json: %s %s is not used: %s", name, value, error)
        else:
            used[name] = value
    return msgspec.convert(used, SamplingDefaults, strict=False)


class Sampling:
    """Makes the parameters of requests to one model, using its defaults and its vocabulary size."""

    def __init__(self, facts: ModelFacts):
        self._defaults = sampling_defaults(facts.sampling_defaults)
        self._chat_defaults = sampling_defaults(facts.sampling_defaults or CHAT_SAMPLING)
        self._facts = facts
        self._vocab_size = facts.vocab_size

    def make_params(self, fields: SamplingFields, *, max_tokens: int, seed: int, echo: bool = False) -> SamplingParams:
        """Returns the parameters; `max_tokens` and `seed` apply if the request sets none.

        `max_tokens` 0 is allowed with `echo` or prompt logprobs. Raises `RequestError` (400, or 404 for the model).
        """
        max_tokens = max_tokens if fields.max_tokens is None else fields.max_tokens
        min_tokens = fields.min_tokens or 0
        if max_tokens == 0 and not echo and fields.prompt_logprobs is None:
            raise bad_request(
                f"max_tokens must be {AT_LEAST_ONE_TEXT}, got 0 (allowed if the prompt is returned)", "max_tokens"
            )
        if min_tokens > max_tokens:
            raise bad_request(
                f"min_tokens must be at most max_tokens, which is {max_tokens}, got {min_tokens}", "min_tokens"
            )
        bias = read_bias(fields.logit_bias)
        self._check_ids("logit_bias", [*bias.by_id, *bias.banned_ids])
        allowed_ids = dict.fromkeys(fields.allowed_token_ids or ())
        self._check_ids("allowed_token_ids", allowed_ids)
        stop_ids = dict.fromkeys(fields.stop_token_ids or ())
        self._check_ids("stop_token_ids", stop_ids)
        if len(stop_ids) > MAX_STOP_IDS:
            raise bad_request(
                f"stop_token_ids may have {MAX_STOP_IDS} different ids, got {len(stop_ids)}", "stop_token_ids"
            )
        stop = (fields.stop,) if isinstance(fields.stop, str) else tuple(fields.stop or ())
        _check_texts(fields, stop, [text for text, _ in bias.texts])
        adapter = find_adapter(self._facts, getattr(fields, "model", None))
        defaults = self._chat_defaults if fields.sampling_defaults == "chat" else self._defaults
        values: dict[str, Any] = {**msgspec.structs.asdict(defaults), "seed": seed}
        values |= {name: value for name in UNCHANGED if (value := getattr(fields, name)) is not None}
        values["top_k"] = max(0, values["top_k"])
        values["top_n_sigma"] = max(0.0, fields.top_n_sigma or 0.0)
        values["repetition_penalty"] = _bearable(values["repetition_penalty"])
        values["cache_salt"] = salt_for(adapter, values.get("cache_salt", ""))
        return SamplingParams(
            max_tokens=max_tokens,
            adapter=adapter,
            stop=stop,
            stop_token_ids=tuple(stop_ids),
            bias_ids=pack_int32(bias.by_id),
            bias_values=pack_float32(bias.by_id.values()),
            bias_texts=tuple(bias.texts),
            allowed_token_ids=pack_int32(allowed_ids),
            bad_words=tuple(dict.fromkeys(fields.bad_words or ())),
            bad_word_ids=tuple(pack_int32([token_id]) for token_id in dict.fromkeys(bias.banned_ids)),
            num_prompt_logprobs=fields.prompt_logprobs,
            grammar=make_grammar(fields),
            dry=_make_dry(fields),
            **values,
        )

    def _check_ids(self, name: str, ids: Iterable[int]) -> None:
        for token_id in ids:
            if token_id >= self._vocab_size:
                raise bad_request(
                    f"{name} must hold token ids below {self._vocab_size}, the size of the vocabulary, got {token_id}",
                    name,
                )


def _make_dry(fields: SamplingFields) -> Dry | None:
    """Returns the DRY penalty that a request sets, `None` without a multiplier."""
    if not fields.dry_multiplier:
        return None
    provided = {name: getattr(fields, f"dry_{name}") for name in DRY_DEFAULTS}
    values = DRY_DEFAULTS | {name: value for name, value in provided.items() if value is not None}
    values["sequence_breakers"] = tuple(values["sequence_breakers"])
    return Dry(fields.dry_multiplier, **values)


def _check_texts(fields: SamplingFields, stop: Iterable[str], biased: Iterable[str]) -> None:
    texts = {"stop": stop, "logit_bias": biased}
    texts |= {"bad_words": fields.bad_words or (), "dry_sequence_breakers": fields.dry_sequence_breakers or ()}
    for name, strings in texts.items():
        num_chars = sum(map(len, strings))
        if num_chars > MAX_TEXT_CHARS:
            raise bad_request(
                f"the strings in {name} may have {MAX_TEXT_CHARS} characters in total, got {num_chars}", name
            )


def _bearable(penalty: float) -> float:
    return min(max(penalty, 1 / MAX_REPETITION_PENALTY), MAX_REPETITION_PENALTY)
