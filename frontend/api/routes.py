"""The route table: every endpoint with its parameters, replies and errors."""

from functools import partial
from typing import Annotated, Any

from msgspec import Meta

from frontend.api.answers.conversation import InputTokens
from frontend.api.generate.generate import GenerateApi, GenerateBody
from frontend.api.generate.generate_events import EndEvent, TokensEvent
from frontend.api.openai.chat import ChatApi, ChatBody
from frontend.api.openai.chat_reply import ChatChunk, ChatCompletion
from frontend.api.openai.completion_reply import Completion
from frontend.api.openai.completions import CompletionApi, CompletionBody
from frontend.api.operate import cache
from frontend.api.operate.aborts import AbortApi, AbortBody, AbortReply
from frontend.api.operate.health import MAX_PROBE_TIMEOUT_S, Health, HealthApi, LoadReply, ProbeReply
from frontend.api.operate.info import InfoApi, ModelCard, ModelList, ServerInfo, VersionReply
from frontend.api.operate.metrics import MetricsApi
from frontend.api.operate.request_view import RequestState
from frontend.api.operate.requests import MAX_LIMIT, RequestReply, RequestsApi, RequestsReply
from frontend.api.operate.tokens import DetokenizeBody, DetokenizeReply, TokenizeBody, TokenizeReply, TokensApi
from frontend.http.endpoint import Endpoint, Name, Parameter, limit_of
from frontend.requests.timeline import Stage

PROMPT = "Once upon a time"
MESSAGES = [{"role": "user", "content": "Tell me a story."}]
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}},
}

REQUEST_ID = Parameter(
    "header",
    "X-Request-Id",
    str,
    "Returned in the reply and logged. An id that is not 1 to 128 letters, digits and ._:/+=- is replaced.",
)
PROBE_TIMEOUT = Parameter(
    "query", "timeout_s", Annotated[float, Meta(gt=0, le=MAX_PROBE_TIMEOUT_S)], "Seconds to wait for the token."
)
MODEL_ID = Parameter("path", "id", Name, "A name of the model.")
REQUEST_NAME = Parameter("path", "id", Name, "The uid, or the id of the HTTP request.")
REQUEST_QUERY = (
    Parameter("query", "state", RequestState, "Only requests in this state."),
    Parameter("query", "stage", Stage, "Only open requests in this stage."),
    Parameter(
        "query",
        "min_age_s",
        Annotated[float, Meta(ge=0)],
        "Only requests at least this old or, if they have ended, that took at least this long.",
    ),
    limit_of(MAX_LIMIT, "Maximum number of requests to show; 100 by default."),
)
TREE_QUERY = (
    limit_of(cache.MAX_NODES, "Maximum number of nodes to show; 50 by default."),
    Parameter(
        "query",
        "engine",
        Annotated[int, Meta(ge=1, le=cache.MAX_ENGINES)],
        "The engine whose cache to show (--data-parallel); the first by default.",
    ),
)

_OPENAI = partial(Endpoint, tag="OpenAI", errors=(404,))
_TOKENS = partial(Endpoint, tag="tokens", errors=(404,))
_CACHE = partial(Endpoint, tag="administration", access="operator")


def generating(generate: GenerateApi, completions: CompletionApi, chat: ChatApi) -> list[Endpoint]:
    """Returns the endpoints that generate text."""
    return [
        Endpoint(
            "/generate",
            generate.generate,
            "Generate from a prompt (native)",
            EndEvent,
            tag="generation",
            description="A stream of events unless `stream` is false.",
            body=GenerateBody,
            events=(TokensEvent, EndEvent),
            parameters=(REQUEST_ID,),
            examples={
                "stream": {"prompt": PROMPT, "max_tokens": 64},
                "token ids, one document": {"prompt": [1, 2, 3], "max_tokens": 8, "temperature": 0, "stream": False},
            },
        ),
        _OPENAI(
            "/v1/completions",
            completions.create,
            "Complete one or several prompts",
            Completion,
            body=CompletionBody,
            events=(Completion,),
            parameters=(REQUEST_ID,),
            examples={
                "one": {"prompt": "Today's weather is", "max_tokens": 50, "temperature": 0.5},
                "logprobs of a prompt": {"prompt": PROMPT, "max_tokens": 0, "echo": True, "logprobs": 1},
                "several": {"prompt": [PROMPT, "The end"], "n": 2, "max_tokens": 8, "stream": True},
            },
        ),
        _OPENAI(
            "/v1/chat/completions",
            chat.create,
            "Continue a conversation",
            ChatCompletion,
            body=ChatBody,
            events=(ChatChunk,),
            parameters=(REQUEST_ID,),
            examples={
                "one": {"messages": MESSAGES, "max_tokens": 64},
                "stream": {"messages": MESSAGES, "stream": True, "stream_options": {"include_usage": True}},
                "a tool": {"messages": MESSAGES, "tools": [TOOL], "tool_choice": "none"},
            },
        ),
        _OPENAI(
            "/v1/chat/completions/input_tokens",
            chat.count,
            "Number of tokens in the prompt of a conversation",
            InputTokens,
            body=ChatBody,
            examples={"one": {"messages": MESSAGES}},
        ),
    ]


def tokens(api: TokensApi) -> list[Endpoint]:
    """Returns the endpoints of the tokenizer."""
    return [
        _TOKENS(
            "/tokenize",
            api.tokenize,
            "The token ids of a prompt or a conversation",
            TokenizeReply,
            body=TokenizeBody,
            examples={"text": {"prompt": PROMPT, "return_token_strs": True}, "chat": {"messages": MESSAGES}},
        ),
        _TOKENS(
            "/detokenize",
            api.detokenize,
            "The text of token ids",
            DetokenizeReply,
            body=DetokenizeBody,
            examples={"ids": {"tokens": [1, 2, 3]}},
        ),
    ]


def models(info: InfoApi) -> list[Endpoint]:
    """Returns the endpoints that describe the served models."""
    one_name = "One name of the served model"
    return [
        Endpoint("/v1/models", info.models, "The names of the served model", ModelList, tag="OpenAI"),
        _OPENAI("/v1/models/{id:path}", info.model, one_name, ModelCard, parameters=(MODEL_ID,)),
        Endpoint("/version", info.version, "The version of the server", VersionReply, access="public"),
        Endpoint("/server_info", info.server_info, "The configuration", ServerInfo),
    ]


def watching(health: HealthApi, metrics: MetricsApi) -> list[Endpoint]:
    """Returns the endpoints that report the state of the server."""
    probe, ping = "Generate one token through the ring", "200 if `/health` is 200"
    return [
        Endpoint(
            "/health",
            health.health,
            "The state of each process",
            Health,
            description="200 if requests can be served now, otherwise 503, also while new requests wait for a "
            "process. The reply waits for no process.",
            other_replies={503: Health},
            access="public",
            is_polled=True,
            is_early=True,
        ),
        Endpoint("/health/generate", health.generate, probe, ProbeReply, parameters=(PROBE_TIMEOUT,)),
        Endpoint("/ping", health.ping, ping, dict[str, Any], access="public", is_polled=True),
        Endpoint("/load", health.load, "The current load", LoadReply),
        Endpoint("/metrics", metrics.metrics, "Metrics for Prometheus", access="overall", is_polled=True),
    ]


def tracing(requests: RequestsApi, aborts: AbortApi) -> list[Endpoint]:
    """Returns the endpoints that show the progress of requests, and abort them."""
    return [
        Endpoint(
            "/requests",
            requests.list_requests,
            "Open requests and the latest ended ones: stage, age, and what each waits for",
            RequestsReply,
            description="Never waits for a step; data from the scheduler has its age.",
            parameters=REQUEST_QUERY,
        ),
        Endpoint(
            "/requests/{id:path}",
            requests.show,
            "The timeline of one request, open or ended",
            RequestReply,
            errors=(404,),
            parameters=(REQUEST_NAME,),
        ),
        Endpoint(
            "/abort_request",
            aborts.abort_request,
            "Abort running requests; their clients get the partial output",
            AbortReply,
            body=AbortBody,
            examples={"one": {"request_id": "my-request"}, "all": {"all": True}},
        ),
    ]


def caching(api: cache.CacheApi) -> list[Endpoint]:
    """Returns the endpoints of the prefix cache. Only the operator sees it: it reveals tokens of other clients."""
    nodes = "The largest nodes of the prefix cache's radix tree"
    return [
        _CACHE(
            "/cache/explain",
            api.explain,
            "How much of a prompt is in the prefix cache, from which request, and why not more",
            cache.ExplainReply,
            body=cache.ExplainBody,
            examples={"text": {"prompt": PROMPT}, "chat": {"messages": MESSAGES, "cache_salt": "tenant-1"}},
        ),
        _CACHE("/cache/tree", api.tree, nodes, cache.CacheTreeReply, parameters=TREE_QUERY),
        Endpoint(
            "/flush_cache",
            api.flush,
            "Empty the prefix cache",
            cache.FlushReply,
            access="overall",
            body=cache.FlushBody,
            errors=(409,),
            examples={"when idle": {}, "now": {"force": True}},
        ),
    ]
