"""`POST /cache/explain`, `GET /cache/tree` and `POST /flush_cache`: what the prefix cache holds, and emptying it."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta
from starlette.requests import Request

from frontend.api.answers.chat_messages import refuse_images
from frontend.api.operate.requests import RequestsApi
from frontend.api.operate.tokens import ChatFields, ModelName, question_of
from frontend.api.parameters.adapter_names import find_adapter, salt_for
from frontend.api.parameters.sampling import TOKEN_IDS_TEXT, NumLogprobs, Salt, Switch, TokenIds
from frontend.http.body import SMALL_BODY_BYTES, BodyDecoder, read_body
from frontend.http.field_names import UnknownFields
from frontend.http.query import read_count
from frontend.http.responses import JsonReply
from frontend.service import Service
from messages.columns import num_int32, pack_int32, unpack_int32
from messages.errors import ErrorInfo, RequestError, bad_request
from messages.ring.cache import CacheExplained, MatchEnd

DEFAULT_NODES = 50
MAX_NODES = 1000
MAX_ENGINES = 64


class ExplainBody(ChatFields, frozen=True, kw_only=True):
    """A prompt as for `/generate`, or the messages of a chat, with what decides what may be found for it."""

    model: ModelName = None
    prompt: Annotated[str | TokenIds | None, Meta(description=f"a string or {TOKEN_IDS_TEXT}")] = None
    cache_salt: Annotated[Salt | None, Meta(description="a string of 1 to 128 characters")] = None
    prompt_logprobs: NumLogprobs = None


class CacheSourceView(msgspec.Struct, frozen=True):
    """Request `uid` computed tokens `start` to `end` (exclusive). Its id is null where it ended long ago."""

    uid: int
    request_id: str | None
    start: int
    end: int


class ExplainReply(msgspec.Struct, frozen=True):
    """`hit_tokens` of `prompt_tokens` would be taken from the cache now. `ended_by` is the reason, explained in `text`.

    If there are several engines, this is the one with the longest hit. `tier_tokens` is the number of the following
    tokens in each lower tier, by its name; a request loads them if that is faster than computing them.

    `position` is the first token that would be computed or, for `different_token`, the one that differs: the prompt has
    `prompt_token` there, and `other_uid` (`other_request_id`) computed `cached_token`.
    """

    prompt_tokens: int
    hit_tokens: int
    sources: list[CacheSourceView]
    ended_by: MatchEnd | Literal["prompt_logprobs"]
    text: str
    position: int
    prompt_token: int | None
    cached_token: int | None
    other_uid: int | None
    other_request_id: str | None
    engine: int
    tier_tokens: dict[str, int]


class CacheNodeView(msgspec.Struct, frozen=True):
    """A run of whole pages. It begins behind `start` tokens of node `parent` and those above; null: at the root."""

    number: int
    parent: int | None
    uid: int
    request_id: str | None
    start: int
    tokens: int
    children: int
    requests_using: int
    is_salted: bool


class CacheTreeReply(msgspec.Struct, frozen=True):
    """`nodes` are the largest of `num_nodes` of the engine that was asked for (`engine`, else the first).

    Cached tokens that no request uses are `evictable_tokens`. `tier_tokens` are in tiers below the cache, by name."""

    num_nodes: int
    cached_tokens: int
    evictable_tokens: int
    nodes: list[CacheNodeView]
    engine: int
    tier_tokens: dict[str, int]


class FlushBody(msgspec.Struct, frozen=True, kw_only=True):
    force: Switch = None
    """Flush pages that running requests do not use, instead of refusing while any request runs."""


class FlushReply(msgspec.Struct, frozen=True):
    """`num_pages` cached pages have been freed."""

    num_pages: int


class CacheApi:
    def __init__(self, service: Service, requests: RequestsApi, unknown: UnknownFields):
        self._service = service
        self._requests = requests
        self._explain_decoder = BodyDecoder(ExplainBody, unknown=unknown, max_bytes=service.config.http.max_body_bytes)
        self._flush_decoder = BodyDecoder(FlushBody, unknown=unknown)
        self._page_tokens = service.config.cache.block_size

    async def explain(self, request: Request) -> JsonReply:
        """Raises `RequestError`: 400, or 503 if a process does not answer. Waits for the running step."""
        body = (await self._explain_decoder.receive(request)).fields
        salt = salt_for(find_adapter(self._service.config.facts, body.model), body.cache_salt or "")
        input_ids = await self._find_ids(body)
        engine, answer = await self._service.queries.explain_cache(input_ids, salt)
        names = await self._requests.find_names([answer.other_uid, *(source.uid for source in answer.sources)])
        return JsonReply(self._reply(body, input_ids, engine, answer, names))

    async def tree(self, request: Request) -> JsonReply:
        """Raises `RequestError`, as `explain`."""
        provided = dict(request.query_params)
        limit = read_count(provided, "limit", DEFAULT_NODES, MAX_NODES)
        engine = read_count(provided, "engine", 1, MAX_ENGINES)
        if engine not in self._service.processes.engine_gauges():
            raise bad_request(f"there is no engine {engine} (see /health)", "engine")
        listed = await self._service.queries.list_cache(limit, engine)
        names = await self._requests.find_names(node.uid for node in listed.nodes)
        nodes = [
            CacheNodeView(
                number=node.number,
                parent=node.parent or None,
                uid=node.uid,
                request_id=names.get(node.uid),
                start=node.start,
                tokens=node.num_tokens,
                children=node.num_children,
                requests_using=node.num_using,
                is_salted=node.is_salted,
            )
            for node in listed.nodes
        ]
        sizes = listed.num_nodes, listed.num_cached_tokens, listed.num_evictable_tokens
        return JsonReply(CacheTreeReply(*sizes, nodes, engine, listed.tier_tokens))

    async def flush(self, request: Request) -> JsonReply:
        """An empty body means `{}`. Raises `RequestError`: 409 while requests are running, unless forced."""
        body = self._flush_decoder.decode(await read_body(request, SMALL_BODY_BYTES) or b"{}")
        flushed = await self._service.queries.flush_cache(is_forced=bool(body.force))
        if flushed.num_requests:
            where = "" if self._service.processes.num_engines == 1 else " of the engines that have them"
            raise RequestError(
                ErrorInfo(
                    409,
                    f"{flushed.num_requests} requests are running: nothing{where} was flushed (see force)",
                    "conflict_error",
                    code="requests_running",
                )
            )
        return JsonReply(FlushReply(flushed.num_pages))

    async def _find_ids(self, body: ExplainBody) -> bytes:
        """Returns the int32 ids that the prompt has in the ring. Raises `RequestError`."""
        if isinstance(body.prompt, list):
            if body.messages is not None:
                raise bad_request("give either prompt or messages", "prompt")
            return pack_int32(body.prompt)
        question, images = question_of(body, body.prompt)
        refuse_images(images)
        answer = await self._service.queries.encode(question)
        if not answer.token_ids:
            raise bad_request("The prompt is empty: it must have at least one token", "prompt")
        return answer.token_ids

    def _reply(
        self, body: ExplainBody, input_ids: bytes, engine: int, answer: CacheExplained, names: dict[int, str]
    ) -> ExplainReply:
        num_tokens = num_int32(input_ids)
        is_computed = body.prompt_logprobs is not None
        text = _text_of(answer, num_tokens, self._page_tokens)
        text += "".join(f"; {tier} has {count} of the next tokens" for tier, count in answer.tier_tokens.items())
        if is_computed:
            text = f"prompt_logprobs need every token to be computed; else {answer.num_hit_tokens} would be found"
        has_other = answer.ended_by == "different_token"
        return ExplainReply(
            prompt_tokens=num_tokens,
            hit_tokens=0 if is_computed else answer.num_hit_tokens,
            sources=[
                CacheSourceView(source.uid, names.get(source.uid), source.start, source.end)
                for source in answer.sources
            ],
            ended_by="prompt_logprobs" if is_computed else answer.ended_by,
            text=text,
            position=0 if is_computed else answer.position,
            prompt_token=unpack_int32(input_ids)[answer.position] if has_other else None,
            cached_token=answer.cached_token if has_other else None,
            other_uid=answer.other_uid or None,
            other_request_id=names.get(answer.other_uid),
            engine=engine,
            tier_tokens={} if is_computed else answer.tier_tokens,
        )


def _text_of(answer: CacheExplained, num_tokens: int, page_tokens: int) -> str:
    hit, place = answer.num_hit_tokens, answer.position
    match answer.ended_by:
        case "page_not_full":
            return (
                f"all that can be is found: of the last {num_tokens - hit} tokens one must be computed, and the others "
                f"are no whole page of {page_tokens}"
            )
        case "different_token":
            return (
                f"token {place} differs: {answer.cached_token} is cached there; pages are shared as a whole, so tokens "
                f"from {hit} on are computed"
            )
        case "evicted":
            return f"tokens from {hit} on were cached and evicted {answer.evicted_s:.1f} s ago (--kv-cache-memory-gb)"
        case "window_evicted":
            return (
                f"more is cached, but layers with a window lack the tokens before its end; from {hit} on are computed"
            )
        case "no_checkpoint":
            return (
                f"{place} tokens are cached, but the state of the recurrent layers only after {hit}; from there on all "
                "are computed"
            )
        case "salt":
            return (
                "nothing with this cache_salt (and with the contents of this LoRA adapter) begins like it, but "
                "something with another one does"
            )
        case "disabled":
            return "the prefix cache is off (--no-enable-prefix-caching)"
        case "not_cached":
            return f"nothing that is cached continues with the prompt's token {place}"
