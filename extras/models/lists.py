"""The lists of models and their states: OpenAI's `/v1/models` and the `/models` of llama.cpp's router."""

import re
import time
from collections.abc import Iterable
from math import inf
from typing import Any

from msgspec.structs import asdict
from starlette.requests import Request

from extras.models.config import ModelEntry
from extras.models.model_table import ModelTable, find_adapters
from extras.models.residency import Residency
from extras.ollama.models import rfc3339
from frontend.api.operate.info import is_of_anthropic, make_card
from frontend.errors import no_such_model
from frontend.http.endpoint import Endpoint
from frontend.http.responses import JsonReply
from frontend.parsing.model_format import ModelFormat, load_model_format
from frontend.requests.trace import trace_of
from messages.config.server import Config, ModelFacts

SECRET = re.compile(r"--api-key|--admin-key|[^@/]*//[^@/]*@")
"""A key, or an address with a password."""

Entry = dict[str, Any]
"""A card as in `/v1/models` of one model, with the state. `size`: bytes of the weights and the KV cache once loaded.
Without `expires_at` a loaded model stays. Fields from the model's files are missing until those have been read."""


class ModelLists:
    """`entries` have each model's own flags."""

    def __init__(self, table: ModelTable, residency: Residency, entries: Iterable[ModelEntry]):
        self._table = table
        self._residency = residency
        self._flags = {entry.name: [flag for flag in entry.flags if not SECRET.match(flag)] for entry in entries}
        self._created_s = int(time.time())
        self._formats: dict[str, ModelFormat] = {}
        """By the file of a model's configuration: reading a chat template takes time."""

    async def models(self, request: Request) -> JsonReply:
        data = [self._entry(name) for name in trace_of(request.scope).client.usable(self._table.names)]
        return JsonReply({"object": "list", "data": data})

    async def all(self, request: Request) -> JsonReply:
        """Returns the models and their LoRA adapters, with the fields of OpenAI's and Anthropic's APIs."""
        data = self._all(request)
        ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"], "has_more": False} if data else {}
        return JsonReply({"object": "list", "data": data, **ends})

    async def one(self, request: Request) -> JsonReply:
        """Raises `RequestError` (404)."""
        requested = request.path_params["id"]
        for entry in self._all(request):
            if entry["id"] == requested:
                return JsonReply(entry)
        raise no_such_model(requested)

    def _all(self, request: Request) -> list[Entry]:
        entries: list[Entry] = []
        for name in self._table.names:
            config = self._table.config(name)
            entries.append(self._entry(name))
            entries += [self._entry(name, adapter) for adapter in (find_adapters(config) if config else {}).items()]
        for entry in entries if is_of_anthropic(request) else ():
            entry.pop("capabilities", None)
        client = trace_of(request.scope).client
        return [entry for entry in entries if client.may_use((entry["id"],))]

    def _entry(self, name: str, adapter: tuple[str, str] | None = None) -> Entry:
        """Returns the entry of a model, or of an `adapter` (name, directory) for it, whose state is the same."""
        config, description = self._table.config(name), self._table.reports[name].description
        facts = config.facts if config else ModelFacts(served_names=(name,))
        shown, directory = adapter or (name, None)
        model_format = self._find_format(config, description.config_file) if config and description else None
        entry: Entry = asdict(make_card(facts, self._created_s, shown, directory, model_format))
        entry |= {"status": self._status(name), "open_requests": self._residency.num_open(name)}
        if config and description:
            generates = facts.pooling is None or facts.pooling.generates
            output = "text" if generates else "embeddings"
            inputs = ["text", "image"] if facts.vision else ["text"]
            entry["architecture"] = {"input_modalities": inputs, "output_modalities": [output]}
            entry |= {"size": description.num_bytes, "weight_bytes": description.weight_bytes}
            entry["cache_bytes"] = description.cache_bytes
        else:
            del entry["max_model_len"], entry["max_input_tokens"], entry["tool_calls"], entry["capabilities"]
        if entry["status"]["value"] == "loaded" and (expires := expires_at(self._residency, name)):
            entry["expires_at"] = expires
        return entry

    def _find_format(self, config: Config, config_file: str) -> ModelFormat:
        if config_file not in self._formats:
            self._formats[config_file] = load_model_format(config)
        return self._formats[config_file]

    def _status(self, name: str) -> dict[str, Any]:
        """Returns the state as llama.cpp's router has it, with `progress` and `error`."""
        state, description = self._table.state(name), self._table.reports[name].description
        status: dict[str, Any] = {"value": state.value, "args": self._flags.get(name, [])}
        if state.value == "loading":
            status["progress"] = {"phase": state.phase, "fraction": state.fraction}
        if error := state.error or (description.error if description else ""):
            status |= {"failed": True, "error": error}
        return status


def expires_at(residency: Residency, name: str) -> str | None:
    """Returns when a loaded model is unloaded unless it is used before; `None`: never."""
    expires_s = residency.expires_s(name)
    return None if expires_s == inf else rfc3339(time.time() + expires_s - time.monotonic())


def make_lists(lists: ModelLists) -> list[Endpoint]:
    return [
        Endpoint("/models", lists.models, "The models, and whether they are loaded", is_polled=True),
        Endpoint("/v1/models", lists.all, "The models and their adapters", is_polled=True),
        Endpoint("/v1/models/{id:path}", lists.one, "One model or adapter", errors=(404,)),
    ]
