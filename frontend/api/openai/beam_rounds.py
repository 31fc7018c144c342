"""The rounds of beam search: in each round, the ring computes one more token for every beam of a prompt.

As in vLLM, the next token of a beam is a separate request. Its prompt is the beam, mostly found in the prefix cache.
"""

from collections.abc import Sequence

import msgspec

from frontend.requests.beam_search import BeamRules, BeamSearch, FinishedBeam
from frontend.requests.generation import Generation
from frontend.service import Service
from messages.columns import num_int32, pack_int32
from messages.errors import RequestError
from messages.ring.replies import Usage, UserReply
from messages.ring.requests import AbortReason, SamplingParams, TokenizeMsg


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
            reasons: list[AbortReason] = [choice.abort_reason for choice in self._choices if choice.is_aborted]
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
            if self._message.sampling_params.echo or self._message.sampling_params.wants_prompt_end:
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
            usage = Usage(first.usage.prompt_tokens, first.usage.cached_tokens, len(token_ids))
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
            wants_prompt_end=False,
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
