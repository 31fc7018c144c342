"""Beam search for OpenAI's endpoints: its parameters, its rounds, and the reply that waits for them.

As in vLLM, the next token of a beam is a separate request. Its prompt is the beam, mostly found in the prefix cache. In
each round, the ring computes one more token for every beam of a prompt.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from frontend.api.openai.body import OpenAiFields, check_choices_differ
from frontend.http.stream import WholeReply
from frontend.requests.beam_search import BeamRules, BeamSearch, FinishedBeam
from frontend.requests.generation import Generation
from frontend.service import Service
from messages.columns import num_int32, pack_int32
from messages.config.server import ModelFacts
from messages.errors import RequestError, bad_request
from messages.ring.replies import UserReply
from messages.ring.requests import AbortReason, SamplingParams, TokenizeMsg

MAX_STOP_TOKENS = 64
"""Each stop token costs one more logprob per beam and round."""


class _EndedEarlyError(Exception):
    """The choices have ended or must end: by an abort, at a deadline, or because their client has left."""


class PromptSearch:
    """The search for one prompt. Its `choices` become the finished beams, best first."""

    def __init__(self, service: Service, choices: Sequence[Generation], rules: BeamRules):
        self._service = service
        self._choices = choices
        self._rules = rules
        self._facts = service.config.facts
        self._message = choices[0].message

    async def run(self) -> None:
        """Runs until all choices have ended. Raises the `RequestError` of a part that failed."""
        try:
            await self._search()
        except _EndedEarlyError:
            reasons: list[AbortReason] = [choice.abort_reason for choice in self._choices if choice.abort_reason]
            for choice in self._choices:
                if choice.final is None:
                    self._service.abort(choice, *reasons[:1])

    async def _search(self) -> None:
        (first,) = await self._run([self._message], echo=True)
        final, prompt = first.ended, first.prompt
        assert prompt is not None
        for choice in self._choices:
            choice.timeline.begin_decoding(final.stamps.first_token_ns, final.usage)
            choice.first_token_ns = first.first_token_ns
            choice.add_prompt(prompt)
        self._message = msgspec.structs.replace(
            self._message, prompt_text=None, chat=None, truncation=None, prompt_ids=prompt.token_ids
        )
        room = self._facts.max_model_len - num_int32(prompt.token_ids)
        search = BeamSearch(self._rules._replace(max_tokens=min(self._rules.max_tokens, room)))
        search.advance([_likeliest(first)])
        while not search.is_over:
            parts = await self._run([self._extended(beam.token_ids) for beam in search.running])
            search.advance([_likeliest(part) for part in parts])
        await self._finish(search.finished, final)

    async def _finish(self, beams: Sequence[FinishedBeam], first: UserReply) -> None:
        """Makes the ring end every beam as it would have ended by itself: with its last token, the only one allowed."""
        parts = await self._send([self._ending(beam.token_ids) for beam in beams])
        for choice, part in zip(self._choices, parts, strict=True):
            final = part.ended
            text, token_ids = part.pop_all()
            stamps = msgspec.structs.replace(
                first.stamps,
                received_ns=choice.message.stamps.received_ns,
                finished_ns=final.stamps.finished_ns,
                detokenized_ns=final.stamps.detokenized_ns,
            )
            usage = msgspec.structs.replace(first.usage, completion_tokens=len(token_ids))
            whole = (choice.uid, choice.attempt, final.finish_reason, text, pack_int32(token_ids), usage, stamps)
            self._service.registry.end(choice, UserReply(*whole, final.stop_reason))

    def _extended(self, token_ids: Sequence[int]) -> TokenizeMsg:
        return msgspec.structs.replace(self._message, prompt_ids=self._message.prompt_ids + pack_int32(token_ids))

    def _ending(self, token_ids: Sequence[int]) -> TokenizeMsg:
        params = msgspec.structs.replace(
            self._message.sampling_params,
            max_tokens=len(token_ids),
            temperature=0.0,
            allowed_token_ids=pack_int32(token_ids[-1:]),
            echo=False,
        )
        return msgspec.structs.replace(self._message, sampling_params=params, output_ids=pack_int32(token_ids[:-1]))

    async def _run(self, messages: Sequence[TokenizeMsg], *, echo: bool = False) -> list[Generation]:
        """Computes the most likely tokens after each of `messages`."""
        params = self._message.sampling_params
        params = SamplingParams(
            max_tokens=1,
            temperature=0.0,
            ignore_eos=True,
            skip_special_tokens=params.skip_special_tokens,
            cache_salt=params.cache_salt,
            adapter=params.adapter,
            num_logprobs=min(self._rules.num_logprobs, self._facts.vocab_size),
            priority=params.priority,
            echo=echo,
        )
        return await self._send([msgspec.structs.replace(message, sampling_params=params) for message in messages])

    async def _send(self, messages: Sequence[TokenizeMsg]) -> list[Generation]:
        """Returns the parts when all have ended without an error. Raises `RequestError`, `_EndedEarlyError`."""
        whole = self._choices[0]
        parts: list[Generation] = []
        try:
            for message in messages:
                parts.append(self._service.open_part(message, whole))
            while any(part.final is None for part in parts):
                if any(choice.final is not None for choice in self._choices):
                    raise _EndedEarlyError
                whole.changed.clear()
                await whole.changed.wait()
        finally:
            for part in parts:
                self._service.leave(part)
        for part in parts:
            if part.ended.error is not None:
                raise RequestError(part.ended.error)
            if part.ended.finish_reason not in ("length", "stop"):
                raise _EndedEarlyError
        return parts


def _likeliest(part: Generation) -> list[tuple[int, float]]:
    (position,) = part.logprobs
    return [(token.token_id, token.logprob or 0.0) for token in position.top]


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

    return WholeReply(service, choices, content, work=search_all)


def _rules(body: OpenAiFields, params: SamplingParams, width: int, facts: ModelFacts) -> BeamRules:
    length_penalty = 1.0 if body.length_penalty is None else body.length_penalty
    end_ids = frozenset((*params.stop_token_ids, *(() if params.ignore_eos else facts.eos_token_ids)))
    return BeamRules(width, params.max_tokens, end_ids, length_penalty, body.early_stopping or False)
