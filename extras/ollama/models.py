"""Ollama's endpoints about models and the server: `/api/version`, `/api/tags`, `/api/ps`, `/api/show`."""

import time
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request

from extras.ollama.body import ModelBody
from extras.ollama.endpoints import Reader
from extras.ollama.weights import WeightFacts, read_weights
from frontend.api.answers.conversation import Conversations
from frontend.api.operate.info import VersionReply, find_version
from frontend.http.responses import JsonReply
from messages.config.server import Config
from messages.errors import ErrorInfo, RequestError
from runtime.chat_files import read_chat_files
from runtime.model_files import read_config

NEVER = "2318-01-01T00:00:00Z"
"""When a model expires that stays in memory: the date that Ollama gives."""


class Details(msgspec.Struct, frozen=True, kw_only=True):
    parent_model: str = ""
    format: str
    family: str
    families: tuple[str, ...]
    parameter_size: str = ""
    quantization_level: str


class LocalModel(msgspec.Struct, frozen=True, kw_only=True):
    """`size`: bytes of the weights. The last three fields are only in `/api/ps`."""

    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: Details
    expires_at: str | UnsetType = UNSET
    size_vram: int | UnsetType = UNSET
    context_length: int | UnsetType = UNSET


class LocalModels(msgspec.Struct, frozen=True):
    models: list[LocalModel]


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    modelfile: str
    parameters: str
    template: str
    details: Details
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str


class ShowBody(ModelBody, frozen=True, kw_only=True):
    pass


class ModelsApi:
    def __init__(self, config: Config, reader: Reader, conversations: Conversations):
        self._config = config
        self._reader = reader
        self._decoder = reader.decoder(ShowBody)
        self._format = conversations.model_format
        self._folder = Path(config.facts.model_dir)

    @cached_property
    def _weights(self) -> WeightFacts:
        return read_weights(self._folder)

    @cached_property
    def _fields(self) -> dict[str, Any]:
        """The model's config.json."""
        return read_config(self._folder / "config.json")

    @property
    def _details(self) -> Details:
        family, weights = str(self._fields.get("model_type")), self._weights
        quantization = self._config.model.quantization
        return Details(
            format=weights.format,
            family=family,
            families=(family,),
            parameter_size=weights.parameter_size,
            quantization_level=weights.level if quantization == "none" else quantization,
        )

    async def version(self, request: Request) -> JsonReply:
        return JsonReply(VersionReply(find_version()))

    async def tags(self, request: Request) -> JsonReply:
        return JsonReply(LocalModels([self._model(name) for name in self._config.facts.served_names]))

    async def running(self, request: Request) -> JsonReply:
        """All models of this server are in memory until it ends."""
        context, names = self._config.facts.max_model_len, self._config.facts.served_names
        fields = {"expires_at": NEVER, "size_vram": 0, "context_length": context}
        return JsonReply(LocalModels([msgspec.structs.replace(self._model(name), **fields) for name in names]))

    async def show(self, request: Request) -> JsonReply:
        """Raises `RequestError` (404) for a name that is not served."""
        body = await self._reader.read(request, self._decoder)
        facts, details = self._config.facts, self._details
        files = read_chat_files(facts.tokenizer_dir, self._config.model.chat_template)
        known = {
            "general.architecture": details.family,
            f"{details.family}.context_length": facts.max_model_len,
            f"{details.family}.embedding_length": self._fields.get("hidden_size"),
            f"{details.family}.block_count": self._fields.get("num_hidden_layers"),
            "general.parameter_count": self._weights.num_parameters or None,
        }
        has_thoughts = self._format.thought is not None
        able = {"completion": True, "tools": self._format.has_calls, "thinking": has_thoughts}
        shown = Shown(
            modelfile=f"FROM {body.model}",
            parameters="\n".join(f"{name} {value}" for name, value in facts.sampling_defaults.items()),
            template=files.templates.get("default", ""),
            details=details,
            model_info={name: value for name, value in known.items() if value is not None},
            capabilities=[name for name, has in able.items() if has],
            modified_at=_rfc3339(self._weights.modified_s),
        )
        return JsonReply(shown)

    async def refuse(self, request: Request) -> JsonReply:
        """Raises `RequestError` (501): models come from the command that starts the server."""
        text = (
            f"{request.url.path} is not supported: this server serves the model that it was started with. Start it "
            "with --model and a name on the Hugging Face hub, a directory or a GGUF file to serve another one"
        )
        raise RequestError(ErrorInfo(501, text, code="not_supported"))

    def _model(self, name: str) -> LocalModel:
        weights = self._weights
        return LocalModel(
            name=name,
            model=name,
            modified_at=_rfc3339(weights.modified_s),
            size=weights.num_bytes,
            digest=weights.digest,
            details=self._details,
        )


def _rfc3339(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
