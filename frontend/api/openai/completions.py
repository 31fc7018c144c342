"""`POST /v1/completions`: OpenAI's endpoint for one or several plain prompts."""

from typing import Annotated, cast

import msgspec
from msgspec import Meta
from starlette.requests import Request

from frontend.api.openai.beam_search import check_choices, whole_reply
from frontend.api.openai.body import (
    NUM_CHOICES_TEXT,
    NumChoices,
    OpenAiFields,
    check_num_choices,
    check_stream_options,
    view_fields,
)
from frontend.api.openai.completion_reply import CompletionEvents, CompletionView
from frontend.api.parameters.generation_body import RequestReader, name_rules, shows_progress, truncation_of
from frontend.api.parameters.sampling import TOKEN_IDS_TEXT, NumLogprobs, Sampling, Switch, TokenId, TokenIds
from frontend.http.field_names import UnknownFields
from frontend.http.stream import EventStream, OpenStreams, WholeReply
from frontend.requests.prompt_request import PromptRequest
from frontend.requests.trace import RequestTrace, trace_of
from frontend.service import Service
from messages.errors import bad_request
from messages.ring.infill import Infill

DEFAULT_MAX_TOKENS = 16

Several = Annotated[list[str | TokenId | TokenIds], Meta(min_length=1)]
PROMPT_TEXT = (
    f"a string, a list of strings, {TOKEN_IDS_TEXT} or a list of such lists, none of them empty, except strings with "
    "a suffix"
)
SUFFIX_TEXT = "a string; with one that is not empty, the text between prompt and suffix is generated"


class CompletionBody(OpenAiFields, frozen=True, kw_only=True):
    prompt: Annotated[str | Several, Meta(description=PROMPT_TEXT)]
    best_of: Annotated[NumChoices | None, Meta(description=NUM_CHOICES_TEXT)] = None
    echo: Switch = None
    logprobs: NumLogprobs = None
    suffix: Annotated[str | None, Meta(description=SUFFIX_TEXT)] = None


class CompletionApi:
    def __init__(self, service: Service, streams: OpenStreams, unknown: UnknownFields):
        self._service = service
        self._streams = streams
        self._reader = RequestReader(service, CompletionBody, name_rules({}), unknown, (check_stream_options,))
        self._sampling = Sampling(service.config.facts)

    async def create(self, request: Request) -> EventStream | WholeReply:
        """Opens the choices. Raises `RequestError`; if another process refuses the request, the response raises it."""
        body = await self._reader.read(request)
        trace = trace_of(request.scope)
        prompts, num_choices = _prompts(body), _num_choices(body)
        check_num_choices(self._service, num_choices, _asking_field(body), len(prompts))
        requests = [self._make_request(body, prompt, num_choices) for prompt in prompts]
        is_streamed = bool(body.stream)
        choices = self._service.open_all(
            requests, trace, is_streamed=is_streamed, timeout_s=body.timeout_s, has_parts=bool(body.use_beam_search)
        )
        view = self._view(body, trace, num_choices)
        if is_streamed:
            events, is_shown = CompletionEvents(view, choices), shows_progress(body.stream_options)
            return EventStream(self._service, self._streams, choices, events, shows_progress=is_shown)
        return whole_reply(self._service, body, choices, num_choices, lambda: view.whole(choices))

    def _make_request(self, body: CompletionBody, prompt: str | list[int], num_choices: int) -> PromptRequest:
        params = self._sampling.make_params(
            body, max_tokens=DEFAULT_MAX_TOKENS, seed=self._service.next_seed(), echo=bool(body.echo)
        )
        is_ranked = num_choices > (body.n or 1) and not body.use_beam_search
        params = msgspec.structs.replace(
            params,
            num_logprobs=0 if is_ranked and body.logprobs is None else body.logprobs,
            num_prompt_logprobs=_num_prompt_logprobs(body),
            echo=_wants_prompt(body, prompt),
        )
        facts = self._service.config.facts
        check_choices(body, params, num_choices, _asking_field(body), facts)
        truncation = truncation_of(body, params, facts.max_model_len)
        adds = body.add_special_tokens is not False
        return PromptRequest(prompt, params, num_choices, adds, truncation, infill=_infill_of(body, prompt))

    def _view(self, body: CompletionBody, trace: RequestTrace, num_choices: int) -> CompletionView:
        return CompletionView(
            **view_fields(body, "cmpl", trace, self._reader.model_name(body)),
            num_shown=body.n or 1,
            num_choices=num_choices,
            has_echo=bool(body.echo),
            has_logprobs=body.logprobs is not None,
        )


def _infill_of(body: CompletionBody, prompt: str | list[int]) -> Infill | None:
    """Returns what surrounds the text to generate, `None` without a suffix. Raises `RequestError` (400)."""
    if not body.suffix:
        return None
    if not isinstance(prompt, str):
        raise bad_request("suffix needs a prompt of text, got token ids", "suffix")
    for name in ("echo", "truncate_prompt_tokens", "use_beam_search"):
        if getattr(body, name):
            raise bad_request(f"{name} cannot be combined with suffix", name)
    return Infill(body.suffix, "suffix")


def _num_choices(body: CompletionBody) -> int:
    """Returns the number of choices per prompt. Raises `RequestError` (400)."""
    num_shown = body.n or 1
    num_choices = num_shown if body.best_of is None else body.best_of
    if num_choices < num_shown:
        raise bad_request(f"best_of must be at least n, which is {num_shown}, got {num_choices}", "best_of")
    if num_choices > num_shown and body.stream:
        raise bad_request("best_of must be equal to n in a stream: nothing can be ranked before its end", "best_of")
    return num_choices


def _asking_field(body: CompletionBody) -> str:
    """Returns the name of the field that sets the number of choices per prompt."""
    return "n" if body.best_of is None else "best_of"


def _num_prompt_logprobs(body: CompletionBody) -> int | None:
    return body.logprobs if body.prompt_logprobs is None and body.echo else body.prompt_logprobs


def _wants_prompt(body: CompletionBody, prompt: str | list[int]) -> bool:
    """True if the reply shows text or ids of the prompt that only the tokenizer knows."""
    if body.truncate_prompt_tokens is not None:
        return bool(body.echo) or bool(body.return_token_ids)
    if isinstance(prompt, list):
        return bool(body.echo)
    return bool(body.return_token_ids)


def _prompts(body: CompletionBody) -> list[str] | list[list[int]]:
    """Returns the prompts as a list. Raises `RequestError` (400) if a list mixes types, or for an empty string."""
    prompt = [body.prompt] if isinstance(body.prompt, str) else body.prompt
    if "" in prompt and not body.suffix:
        raise bad_request(f"prompt must be {PROMPT_TEXT}, got an empty string", "prompt")
    kinds = {type(entry) for entry in prompt}
    if len(kinds) > 1:
        raise bad_request(f"prompt must be {PROMPT_TEXT}, got a list that mixes them", "prompt")
    return cast("list[str] | list[list[int]]", [prompt] if kinds == {int} else prompt)
