"""Beam search for OpenAI's endpoints: the parameters that it supports, and the reply that waits for it."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from frontend.api.openai.beam_rounds import PromptSearch
from frontend.api.openai.body import OpenAiFields, check_choices_differ
from frontend.http.stream import WholeReply
from frontend.requests.beam_search import BeamRules
from frontend.requests.generation import Generation
from frontend.service import Service
from messages.config.server import ModelFacts
from messages.errors import bad_request
from messages.ring.requests import SamplingParams

MAX_STOP_TOKENS = 64
"""Each stop token costs one more logprob per beam and round."""


def check_choices(body: OpenAiFields, params: SamplingParams, num_choices: int, name: str, facts: ModelFacts) -> None:
    """Raises `RequestError` (400) if the `num_choices` choices that field `name` requests cannot be generated."""
    if body.num_beams not in (None, num_choices if body.use_beam_search else 1):
        text = f"num_beams cannot be {body.num_beams} here: beam search has use_beam_search true and as many beams as"
        raise bad_request(f"{text} {name}", "num_beams")
    if body.use_beam_search:
        _check_beam_search(body, params, num_choices, name, facts)
        return
    check_choices_differ(params, num_choices, name)
    for field, value, neutral in (
        ("length_penalty", body.length_penalty, 1),
        ("early_stopping", body.early_stopping, False),
    ):
        if value is not None and value != neutral:
            raise bad_request(f"{field} is for beam search: use_beam_search must be true", field)


def _check_beam_search(body: OpenAiFields, params: SamplingParams, width: int, name: str, facts: ModelFacts) -> None:
    asked = {
        "stream": body.stream,
        "logprobs": params.num_logprobs is not None,
        "prompt_logprobs": params.num_prompt_logprobs is not None,
        "stop": params.stop,
        "min_tokens": params.min_tokens,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        "repetition_penalty": body.repetition_penalty not in (None, 1),
        "dry_multiplier": params.dry,
        "logit_bias": body.logit_bias,
        "allowed_token_ids": params.allowed_token_ids,
        "bad_words": params.bad_words,
        "grammar" if params.grammar is None else params.grammar.param: params.grammar,
    }
    for field, is_asked in asked.items():
        if is_asked:
            reason = "beams are ranked by the model's own logprobs, and known when all have ended"
            raise bad_request(f"{field} cannot be combined with use_beam_search: {reason}", field)
    if not params.max_tokens:
        raise bad_request("max_tokens must be at least 1 with use_beam_search, got 0", "max_tokens")
    if body.truncate_prompt_tokens == -1:
        raise bad_request("truncate_prompt_tokens must be at least 1 with use_beam_search", "truncate_prompt_tokens")
    if len(params.stop_token_ids) > MAX_STOP_TOKENS:
        raise bad_request(f"stop_token_ids may be {MAX_STOP_TOKENS} with use_beam_search", "stop_token_ids")
    if width > facts.vocab_size:
        raise bad_request(f"{name} must be at most {facts.vocab_size}, the size of the vocabulary, got {width}", name)


def whole_reply(
    service: Service, body: OpenAiFields, choices: Sequence[Generation], num_choices: int, content: Callable[[], Any]
) -> WholeReply:
    """Returns the response for `choices`, `num_choices` per prompt; beam search fills them if requested."""
    if not body.use_beam_search:
        return WholeReply(service, choices, content)
    rules = _rules(body, choices[0].message.sampling_params, num_choices, service.config.facts)
    searches = [
        PromptSearch(service, choices[first : first + num_choices], rules)
        for first in range(0, len(choices), num_choices)
    ]

    async def search_all() -> None:
        tasks = [asyncio.create_task(search.run()) for search in searches]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    return WholeReply(service, choices, content, search_all)


def _rules(body: OpenAiFields, params: SamplingParams, width: int, facts: ModelFacts) -> BeamRules:
    length_penalty = 1.0 if body.length_penalty is None else body.length_penalty
    end_ids = frozenset((*params.stop_token_ids, *(() if params.ignore_eos else facts.eos_token_ids)))
    return BeamRules(width, params.max_tokens, end_ids, length_penalty, body.early_stopping or False)
