"""The lists of models and their states: OpenAI's `/v1/models` and the `/models` of llama.cpp's router."""

import time
from collections.abc import Iterable, Iterator
from math import inf
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import asdict
from starlette.requests import Request

from extras.models.config import ModelEntry
from extras.models.messages import Description
from extras.models.model_table import ModelTable, find_adapters
from extras.models.residency import Residency
from extras.ollama.models import rfc3339
from frontend.api.operate.info import ModelCard, make_card
from frontend.errors import not_found
from frontend.http.endpoint import Endpoint, Name, Parameter
from frontend.http.responses import JsonReply
from messages.config.server import ModelFacts

SECRETS = ("--api-key", "--admin-key")


class Progress(msgspec.Struct, frozen=True):
    phase: str
    fraction: float | None


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """`failed`, `error`: why the latest load has ended. `args`: the model's own flags."""

    value: Literal["unloaded", "loading", "loaded"]
    args: tuple[str, ...]
    failed: bool | UnsetType = UNSET
    error: str | UnsetType = UNSET
    progress: Progress | UnsetType = UNSET


class Architecture(msgspec.Struct, frozen=True):
    input_modalities: tuple[str, ...]
    output_modalities: tuple[str, ...]


class ListedModel(ModelCard, frozen=True, kw_only=True):
    """`size`: bytes in memory once it is loaded, of its weights and its KV cache. Without `expires_at` it stays loaded.
    Fields that come from the model's files are missing until those have been read."""

    status: Status
    architecture: Architecture | UnsetType = UNSET
    size: int | UnsetType = UNSET
    weight_bytes: int | UnsetType = UNSET
    cache_bytes: int | UnsetType = UNSET
    expires_at: str | UnsetType = UNSET
    open_requests: int = 0


class ListedModels(msgspec.Struct, frozen=True):
    data: list[ListedModel]
    object: Literal["list"] = "list"


class AllModels(ListedModels, frozen=True, kw_only=True):
    """The fields of OpenAI's and Anthropic's APIs."""

    first_id: str | None
    last_id: str | None
    has_more: Literal[False] = False


class ModelLists:
    """`own_flags`: the flags of each model alone."""

    def __init__(self, table: ModelTable, residency: Residency, entries: Iterable[ModelEntry]):
        self._table = table
        self._residency = residency
        self._own_flags = {
            entry.name: tuple(flag for flag in entry.flags if not flag.startswith(SECRETS)) for entry in entries
        }
        self._created_s = int(time.time())

    async def models(self, request: Request) -> JsonReply:
        return JsonReply(ListedModels([self._listed(name, name) for name in self._table.names]))

    async def all(self, request: Request) -> JsonReply:
        """Returns the models and their LoRA adapters."""
        listed = list(self._all())
        first, last = (listed[0].id, listed[-1].id) if listed else (None, None)
        return JsonReply(AllModels(data=listed, first_id=first, last_id=last))

    async def one(self, request: Request) -> JsonReply:
        """Raises `RequestError` (404)."""
        wanted = request.path_params["id"]
        for listed in self._all():
            if listed.id == wanted:
                return JsonReply(listed)
        raise not_found(f"The model `{wanted[:200]}` does not exist", "model_not_found", "model")

    def _all(self) -> Iterator[ListedModel]:
        for name in self._table.names:
            yield self._listed(name, name)
            if config := self._table.config(name):
                yield from (self._listed(name, adapter, path) for adapter, path in find_adapters(config).items())

    def _listed(self, model: str, name: str, adapter_dir: str | None = None) -> ListedModel:
        """Returns the entry of `name`: the `model`, or an adapter for it, whose state is the same."""
        config, description = self._table.config(model), self._table.reports[model].description
        facts = config.facts if config else _unknown(model)
        fields: dict[str, Any] = asdict(make_card(facts, self._created_s, name, adapter_dir))
        if config and description:
            generates = facts.pooling is None or facts.pooling.generates
            fields |= {
                "architecture": Architecture(("text",), ("text" if generates else "embeddings",)),
                "size": description.num_bytes,
                "weight_bytes": description.weight_bytes,
                "cache_bytes": description.cache_bytes,
            }
        else:
            fields |= {"max_model_len": UNSET, "max_input_tokens": UNSET}
        status = self._status(model, description)
        if status.value == "loaded":
            fields["expires_at"] = expires_at(self._residency, model) or UNSET
        return ListedModel(**fields, status=status, open_requests=self._residency.num_open(model))

    def _status(self, name: str, description: Description | None) -> Status:
        state = self._table.state(name)
        error = state.error or (description.error if description else "")
        return Status(
            value=state.value,
            args=self._own_flags.get(name, ()),
            failed=True if error else UNSET,
            error=error or UNSET,
            progress=Progress(state.phase, state.fraction) if state.value == "loading" else UNSET,
        )


def _unknown(name: str) -> ModelFacts:
    return ModelFacts(model_dir="", tokenizer_dir="", served_names=(name,), vocab_size=0, max_model_len=0)


def expires_at(residency: Residency, name: str) -> str | None:
    """Returns when a loaded model is unloaded unless it is used before; `None`: never."""
    expires_s = residency.expires_s(name)
    return None if expires_s == inf else rfc3339(time.time() + expires_s - time.monotonic())


def make_lists(lists: ModelLists) -> list[Endpoint]:
    model_id = Parameter("path", "id", Name, "the name of a model or an adapter")
    return [
        Endpoint("/models", lists.models, "The models, and whether they are loaded", ListedModels, is_polled=True),
        Endpoint("/v1/models", lists.all, "The models and their adapters", AllModels, is_polled=True),
        Endpoint("/v1/models/{id:path}", lists.one, "One model", ListedModel, errors=(404,), parameters=(model_id,)),
    ]
