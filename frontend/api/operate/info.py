"""The served models and the configuration: `/v1/models`, `/version` and `/server_info`."""

import time
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request

from frontend.api.parameters.adapter_names import find_adapter
from frontend.errors import no_such_model
from frontend.http.responses import JsonReply
from frontend.links.processes import ProcessView
from frontend.parsing.model_format import ModelFormat, ToolCalls
from frontend.requests.trace import trace_of
from messages import VERSION
from messages.config.images import ImageConfig
from messages.config.server import CacheConfig, Config, HttpConfig, ModelConfig, ModelFacts, RunConfig, SchedulingConfig
from messages.control.processes import ENCODER
from runtime.adapter_table import read_table


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of OpenAI's API and our own, followed from `type` on by those of Anthropic's API."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["sluice"] = "sluice"
    root: str
    parent: str | None = None
    """The model of a LoRA adapter, whose `root` is its directory."""
    max_model_len: int
    type: Literal["model"] = "model"
    display_name: str
    created_at: str
    lifecycle: Literal["active"] = "active"
    max_input_tokens: int
    tool_calls: ToolCalls | None = None
    """Whether the model calls tools in a format of its own or in the generic one; null if it cannot."""
    capabilities: list[str] | UnsetType = UNSET
    """By the names that Ollama uses, such as "tools" and "vision"; absent for clients of Anthropic's API."""


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of OpenAI's and Anthropic's APIs."""

    object: Literal["list"] = "list"
    data: tuple[ModelCard, ...]
    first_id: str | None
    last_id: str | None
    has_more: Literal[False] = False


class VersionReply(msgspec.Struct, frozen=True):
    version: str


class ShownConfig(msgspec.Struct, frozen=True):
    """The sections of the configuration, with keys replaced by asterisks."""

    model: ModelConfig
    cache: CacheConfig
    scheduling: SchedulingConfig
    http: HttpConfig
    images: ImageConfig
    run: RunConfig


class ServerInfo(msgspec.Struct, frozen=True):
    """`placement`: per scheduler and encoder, the device, dtype and kv_cache_dtype that `auto` resolved to."""

    version: str
    config: ShownConfig
    model: ModelFacts
    placement: dict[str, dict[str, str]]


class InfoApi:
    def __init__(self, config: Config, processes: ProcessView, model_format: ModelFormat):
        self._format = model_format
        self._created = int(time.time())
        self._config = config
        self._processes = processes

    async def models(self, request: Request) -> JsonReply:
        facts = self._config.facts
        names = trace_of(request.scope).client.usable((*facts.served_names, *read_table(facts.adapter_table)))
        cards = tuple(self._card(name, request) for name in names)
        first_id, last_id = (names[0], names[-1]) if names else (None, None)
        return JsonReply(ModelList(data=cards, first_id=first_id, last_id=last_id))

    async def model(self, request: Request) -> JsonReply:
        """Raises `RequestError` (404) for a name that is not served, or not to this client."""
        name = request.path_params["id"]
        if not trace_of(request.scope).client.may_use((name,)):
            raise no_such_model(name)
        return JsonReply(self._card(name, request))

    def _card(self, name: str, request: Request) -> ModelCard:
        facts = self._config.facts
        adapter = find_adapter(facts, name)
        card = make_card(facts, self._created, name, None if adapter is None else adapter.path, self._format)
        return msgspec.structs.replace(card, capabilities=UNSET) if is_of_anthropic(request) else card

    async def version(self, request: Request) -> JsonReply:
        return JsonReply(VersionReply(VERSION))

    async def server_info(self, request: Request) -> JsonReply:
        """Returns the configuration of all processes (without keys), the facts about the model, and where it runs."""
        config = self._config
        shown = ShownConfig(
            config.model, config.cache, config.scheduling, config.http.without_keys(), config.images, config.run
        )
        placements = self._processes.placements() | self._processes.placements(ENCODER)
        return JsonReply(ServerInfo(VERSION, shown, config.facts, placements))


def is_of_anthropic(request: Request) -> bool:
    """True for the clients of Anthropic's API, in which `capabilities` is another object."""
    return "anthropic-version" in request.headers


def list_capabilities(facts: ModelFacts, model_format: ModelFormat) -> list[str]:
    able = {
        "completion": facts.pooling is None or facts.pooling.generates,
        "embedding": facts.pooling is not None and facts.pooling.kind == "embed",
        "tools": model_format.has_calls,
        "thinking": model_format.thought is not None,
        "vision": facts.vision is not None,
    }
    return [name for name, has in able.items() if has]


def make_card(
    facts: ModelFacts,
    created_s: int,
    name: str,
    adapter_dir: str | None = None,
    model_format: ModelFormat | None = None,
) -> ModelCard:
    """Returns the card of the model or, with `adapter_dir`, of a LoRA adapter for it.

    `model_format` is `None` if the model's files have not been read yet.
    """
    return ModelCard(
        id=name,
        created=created_s,
        root=facts.model_dir if adapter_dir is None else adapter_dir,
        parent=None if adapter_dir is None else facts.served_names[0],
        max_model_len=facts.max_model_len,
        display_name=name,
        created_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(created_s)),
        max_input_tokens=facts.max_model_len,
        tool_calls=model_format and model_format.tool_calls,
        capabilities=UNSET if model_format is None else list_capabilities(facts, model_format),
    )
