"""Ollama's endpoints about models and the server: `/api/version`, `/api/tags`, `/api/ps`, `/api/show`."""

import time
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace
from starlette.requests import Request

from extras.ollama.body import ModelBody
from extras.ollama.endpoints import Reader
from extras.ollama.weights import WeightFacts, read_weights
from frontend.api.operate.info import VersionReply, list_capabilities
from frontend.http.responses import JsonReply
from frontend.parsing.model_format import ModelFormat
from frontend.requests.trace import trace_of
from messages.config.server import Config
from messages.errors import ErrorInfo, RequestError
from runtime.chat_files import read_chat_files
from runtime.infill_marks import FAMILIES
from runtime.model_files import read_config

NEVER = "2318-01-01T00:00:00Z"
"""When a model expires that stays in memory: the date that Ollama gives."""

OLLAMA_VERSION = "0.12.11"
"""The version of Ollama whose API this is; clients refuse one that is too old for them."""

VARIABLES = {"tools": ".Tools", "insert": ".Suffix"}
"""By these names in a template of Ollama's, clients decide what a model can do. Ours gets them in a comment."""


class Details(msgspec.Struct, frozen=True, kw_only=True):
    parent_model: str = ""
    format: str
    family: str
    families: tuple[str, ...]
    parameter_size: str = ""
    quantization_level: str


class LocalModel(msgspec.Struct, frozen=True, kw_only=True):
    """`size`: bytes of the weights. `capabilities` are only in `/api/tags`, the last three fields only in `/api/ps`."""

    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: Details
    capabilities: list[str] | UnsetType = UNSET
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


class ShownModel:
    """What clients are shown of one model, by its files."""

    def __init__(self, config: Config, model_format: ModelFormat):
        self._config = config
        self._format = model_format
        self._folder = Path(config.facts.model_dir)

    @cached_property
    def _weights(self) -> WeightFacts:
        return read_weights(self._folder)

    @cached_property
    def _fields(self) -> dict[str, Any]:
        """The model's config.json."""
        return read_config(self._folder / "config.json")

    @cached_property
    def _fills_gaps(self) -> bool:
        """True if the tokenizer has the marks of a prompt with a suffix."""
        file = Path(self._config.facts.tokenizer_dir) / "tokenizer.json"
        text = file.read_text(encoding="utf-8") if file.exists() else ""
        return any(all(mark in text for mark in marks[:3]) for marks in FAMILIES)

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

    @property
    def _capabilities(self) -> list[str]:
        return list_capabilities(self._config.facts, self._format) + ["insert"] * self._fills_gaps

    def local(self, name: str) -> LocalModel:
        """Returns its entry in `/api/tags`."""
        weights = self._weights
        return LocalModel(
            name=name,
            model=name,
            modified_at=rfc3339(weights.modified_s),
            size=weights.num_bytes,
            digest=weights.digest,
            details=self._details,
            capabilities=self._capabilities,
        )

    def running(self, name: str, num_bytes: int | None = None, expires_at: str = NEVER) -> LocalModel:
        """Returns its entry in `/api/ps`; `num_bytes`: of its weights and KV cache."""
        local = self.local(name)
        size = local.size if num_bytes is None else num_bytes
        vram = size if self._config.model.device_type == "cuda" else 0
        context = self._config.facts.max_model_len
        local = replace(local, capabilities=UNSET)
        return replace(local, size=size, size_vram=vram, expires_at=expires_at, context_length=context)

    def shown(self, name: str) -> Shown:
        """Returns the reply of `/api/show`."""
        facts, details = self._config.facts, self._details
        files = read_chat_files(facts.tokenizer_dir, self._config.model.chat_template)
        known = {
            "general.architecture": details.family,
            f"{details.family}.context_length": facts.max_model_len,
            f"{details.family}.embedding_length": self._fields.get("hidden_size"),
            f"{details.family}.block_count": self._fields.get("num_hidden_layers"),
            "general.parameter_count": self._weights.num_parameters or None,
        }
        able = self._capabilities
        variables = " ".join(variable for name, variable in VARIABLES.items() if name in able)
        return Shown(
            modelfile=f"FROM {name}",
            parameters="\n".join(f"{name} {value}" for name, value in facts.sampling_defaults.items()),
            template=files.templates.get("default", "") + (f"{{# {variables} #}}" if variables else ""),
            details=details,
            model_info={name: value for name, value in known.items() if value is not None},
            capabilities=able,
            modified_at=rfc3339(self._weights.modified_s),
        )


class ModelsApi:
    def __init__(self, config: Config, reader: Reader, model_format: ModelFormat):
        self._names = config.facts.served_names
        self._reader = reader
        self._decoder = reader.decoder(ModelBody)
        self._model = ShownModel(config, model_format)

    async def tags(self, request: Request) -> JsonReply:
        return JsonReply(LocalModels([self._model.local(name) for name in self._named(request)]))

    async def running(self, request: Request) -> JsonReply:
        """The model of this server is in memory until it ends."""
        return JsonReply(LocalModels([self._model.running(name) for name in self._named(request)]))

    def _named(self, request: Request) -> list[str]:
        return trace_of(request.scope).client.usable(self._names)

    async def show(self, request: Request) -> JsonReply:
        """Raises `RequestError` (404) for a name that is not served."""
        asked = await self._reader.read(request, self._decoder)
        return JsonReply(self._model.shown(asked.served.model))


async def version(request: Request) -> JsonReply:
    return JsonReply(VersionReply(OLLAMA_VERSION))


async def refuse(request: Request) -> JsonReply:
    """Raises `RequestError` (501): models come from the command that starts the server."""
    text = (
        f"{request.url.path} is not supported: this server serves the models that it was started with. Start it with "
        "--model or --models and a name on the Hugging Face hub, a directory or a GGUF file to serve others"
    )
    raise RequestError(ErrorInfo(501, text, code="not_supported"))


def rfc3339(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
