"""The route table: every endpoint with what it takes, what it answers and in which ways it refuses."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from frontend.api.aborts import AbortApi, AbortBody, AbortReply
from frontend.api.cache import CacheApi, FlushBody, FlushReply
from frontend.api.cache_view import MAX_ENGINES, MAX_NODES, CacheTreeReply, CacheViewApi, ExplainBody, ExplainReply
from frontend.api.chat import ChatApi, ChatBody
from frontend.api.chat_reply import ChatChunk, ChatCompletion
from frontend.api.completion_reply import Completion
from frontend.api.completions import CompletionApi, CompletionBody
from frontend.api.generate import GenerateApi, GenerateBody
from frontend.api.generate_events import EndEvent, TokensEvent
from frontend.api.health import MAX_PROBE_TIMEOUT_S, Health, HealthApi, ProbeReply
from frontend.api.info import InfoApi, ModelCard, ModelList, ServerInfo, VersionReply
from frontend.api.live.stream import LiveApi
from frontend.api.live.view import LiveEvent
from frontend.api.load import LoadApi, LoadReply
from frontend.api.metrics import MetricsApi
from frontend.api.page import PageApi
from frontend.api.request_view import RequestState
from frontend.api.requests import MAX_LIMIT, RequestReply, RequestsApi, RequestsReply
from frontend.api.tokens import DetokenizeBody, DetokenizeReply, TokenizeBody, TokenizeReply, TokensApi
from frontend.http.endpoint import Endpoint, Parameter
from frontend.requests.timeline import Stage

PROMPT = "Once upon a time"
MESSAGES = [{"role": "user", "content": "Tell me a story."}]
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}},
}

REQUEST_ID = Parameter(
    name="X-Request-Id",
    place="header",
    schema=str,
    description="Comes back in the reply and stands in the log; of 1 to 128 letters, digits and ._:/+=-, else it is "
    "replaced.",
)
PROBE_TIMEOUT = Parameter(
    name="timeout_s",
    place="query",
    schema=Annotated[float, Meta(gt=0, le=MAX_PROBE_TIMEOUT_S)],
    description="Seconds to wait for the token.",
)
MODEL_ID = Parameter(
    name="id", place="path", schema=Annotated[str, Meta(min_length=1)], description="A name of the model."
)

REQUEST_QUERY = (
    Parameter(name="state", place="query", schema=RequestState, description="Only requests in this state."),
    Parameter(name="stage", place="query", schema=Stage, description="Only open requests in this stage."),
    Parameter(
        name="min_age_s",
        place="query",
        schema=Annotated[float, Meta(ge=0)],
        description="Only requests that are so old or, where they have ended, took so long.",
    ),
    Parameter(
        name="limit",
        place="query",
        schema=Annotated[int, Meta(ge=1, le=MAX_LIMIT)],
        description="The most requests to show; 100 if it is not given.",
    ),
)
REQUEST_NAME = Parameter(
    name="id",
    place="path",
    schema=Annotated[str, Meta(min_length=1)],
    description="The uid, or the id of the HTTP request.",
)


def generating(generate: GenerateApi, completions: CompletionApi, chat: ChatApi) -> list[Endpoint]:
    """Returns the endpoints that generate text."""
    return [
        Endpoint(
            method="POST",
            path="/generate",
            run=generate.generate,
            tag="generation",
            summary="Generate from a prompt (native)",
            description="A stream of events unless `stream` is false.",
            body=GenerateBody,
            reply=EndEvent,
            events=(TokensEvent, EndEvent),
            parameters=(REQUEST_ID,),
            examples={
                "stream": {"prompt": PROMPT, "max_tokens": 64},
                "token ids, one document": {"prompt": [1, 2, 3], "max_tokens": 8, "temperature": 0, "stream": False},
            },
        ),
        Endpoint(
            method="POST",
            path="/v1/completions",
            run=completions.create,
            tag="OpenAI",
            summary="Complete one or several prompts",
            body=CompletionBody,
            reply=Completion,
            events=(Completion,),
            errors=(404,),
            parameters=(REQUEST_ID,),
            examples={
                "one": {"prompt": "Today's weather is", "max_tokens": 50, "temperature": 0.5},
                "logprobs of a prompt": {"prompt": PROMPT, "max_tokens": 0, "echo": True, "logprobs": 1},
                "several": {"prompt": [PROMPT, "The end"], "n": 2, "max_tokens": 8, "stream": True},
            },
        ),
        Endpoint(
            method="POST",
            path="/v1/chat/completions",
            run=chat.create,
            tag="OpenAI",
            summary="Continue a conversation",
            body=ChatBody,
            reply=ChatCompletion,
            events=(ChatChunk,),
            errors=(404,),
            parameters=(REQUEST_ID,),
            examples={
                "one": {"messages": MESSAGES, "max_tokens": 64},
                "stream": {"messages": MESSAGES, "stream": True, "stream_options": {"include_usage": True}},
                "a tool": {"messages": MESSAGES, "tools": [TOOL], "tool_choice": "none"},
            },
        ),
    ]


def tokens(api: TokensApi) -> list[Endpoint]:
    """Returns the endpoints that show what the tokenizer does."""
    return [
        Endpoint(
            method="POST",
            path="/tokenize",
            run=api.tokenize,
            tag="tokens",
            summary="The token ids of a prompt or a conversation",
            body=TokenizeBody,
            reply=TokenizeReply,
            errors=(404,),
            examples={"text": {"prompt": PROMPT, "return_token_strs": True}, "chat": {"messages": MESSAGES}},
        ),
        Endpoint(
            method="POST",
            path="/detokenize",
            run=api.detokenize,
            tag="tokens",
            summary="The text of token ids",
            body=DetokenizeBody,
            reply=DetokenizeReply,
            errors=(404,),
            examples={"ids": {"tokens": [1, 2, 3]}},
        ),
    ]


def models(info: InfoApi) -> list[Endpoint]:
    """Returns the endpoints that tell what is served."""
    return [
        _get("/v1/models", info.models, "OpenAI", "The names of the served model", ModelList),
        Endpoint(
            method="GET",
            path="/v1/models/{id:path}",
            run=info.model,
            tag="OpenAI",
            summary="One name of the served model",
            reply=ModelCard,
            errors=(404,),
            parameters=(MODEL_ID,),
        ),
        _get("/version", info.version, "operation", "The version of the server", VersionReply, access="public"),
        _get("/server_info", info.server_info, "operation", "The configuration", ServerInfo),
    ]


def watching(health: HealthApi, load: LoadApi, metrics: MetricsApi) -> list[Endpoint]:
    """Returns the endpoints that tell how the server is."""
    return [
        Endpoint(
            method="GET",
            path="/health",
            run=health.health,
            tag="operation",
            summary="How each process is",
            description="200 where requests can be served at once, else 503, also while new ones wait for a process. "
            "Waits for no process.",
            reply=Health,
            other_replies={503: Health},
            access="public",
            is_polled=True,
            is_early=True,
        ),
        Endpoint(
            method="GET",
            path="/health/generate",
            run=health.generate,
            tag="operation",
            summary="Whether a token really comes round the ring",
            reply=ProbeReply,
            parameters=(PROBE_TIMEOUT,),
        ),
        _get(
            "/ping",
            health.ping,
            "operation",
            "200 where `/health` is 200",
            dict[str, Any],
            access="public",
            is_polled=True,
        ),
        _get("/load", load.load, "operation", "How much there is to do", LoadReply),
        _get("/metrics", metrics.metrics, "operation", "Metrics for Prometheus", None, is_polled=True),
    ]


def showing(live: LiveApi, page: PageApi) -> list[Endpoint]:
    """Returns the endpoints that show the server as it runs: the page for people, and the stream that it reads."""
    file = Endpoint(
        method="GET",
        path="/",
        run=page.index,
        tag="operation",
        summary="The live page",
        access="public",
        is_early=True,
        is_described=False,
    )
    return [
        file,
        msgspec.structs.replace(file, path="/page/{name}", run=page.file, is_polled=True),
        Endpoint(
            method="GET",
            path="/live",
            run=live.watch,
            tag="operation",
            summary="Processes, edges, steps and requests: all at first, then what changes, until the server drains",
            events=(LiveEvent,),
            is_early=True,
        ),
    ]


def tracing(requests: RequestsApi) -> list[Endpoint]:
    """Returns the endpoints that tell what becomes of requests."""
    return [
        Endpoint(
            method="GET",
            path="/requests",
            run=requests.list_requests,
            tag="operation",
            summary="Open requests and the latest that have ended: stage, age, and for what each waits",
            description="Waits for no step: what comes from the scheduler is as old as it says.",
            reply=RequestsReply,
            parameters=REQUEST_QUERY,
        ),
        Endpoint(
            method="GET",
            path="/requests/{id:path}",
            run=requests.show,
            tag="operation",
            summary="The timeline of one request, open or ended",
            reply=RequestReply,
            errors=(404,),
            parameters=(REQUEST_NAME,),
        ),
    ]


def caching(api: CacheViewApi) -> list[Endpoint]:
    """Returns the endpoints that show the prefix cache, to the operator alone: they tell of the tokens of others."""
    return [
        Endpoint(
            method="POST",
            path="/cache/explain",
            run=api.explain,
            tag="administration",
            summary="How much of a prompt is in the prefix cache, from which request, and why not more",
            body=ExplainBody,
            reply=ExplainReply,
            access="operator",
            examples={"text": {"prompt": PROMPT}, "chat": {"messages": MESSAGES, "cache_salt": "tenant-1"}},
        ),
        Endpoint(
            method="GET",
            path="/cache/tree",
            run=api.tree,
            tag="administration",
            summary="The largest nodes of the prefix cache's radix tree",
            reply=CacheTreeReply,
            access="operator",
            parameters=(
                Parameter(
                    name="limit",
                    place="query",
                    schema=Annotated[int, Meta(ge=1, le=MAX_NODES)],
                    description="The most nodes to show; 50 if it is not given.",
                ),
                Parameter(
                    name="engine",
                    place="query",
                    schema=Annotated[int, Meta(ge=1, le=MAX_ENGINES)],
                    description="The engine whose cache is meant (--data-parallel); the first if it is not given.",
                ),
            ),
        ),
    ]


def steering(aborts: AbortApi, cache: CacheApi) -> list[Endpoint]:
    """Returns the endpoints that change what the server does."""
    return [
        Endpoint(
            method="POST",
            path="/abort_request",
            run=aborts.abort_request,
            tag="operation",
            summary="End running requests; their clients get what there is",
            body=AbortBody,
            reply=AbortReply,
            examples={"one": {"request_id": "my-request"}, "all": {"all": True}},
        ),
        Endpoint(
            method="POST",
            path="/flush_cache",
            run=cache.flush,
            tag="operation",
            summary="Empty the prefix cache",
            body=FlushBody,
            reply=FlushReply,
            errors=(409,),
            examples={"when idle": {}, "now": {"force": True}},
        ),
    ]


def _get(path: str, run: Any, tag: str, summary: str, reply: Any, **more: Any) -> Endpoint:
    return Endpoint(method="GET", path=path, run=run, tag=tag, summary=summary, reply=reply, **more)
