"""What is served and how it is configured: `/v1/models`, `/version` and `/server_info`."""

import importlib.metadata
import time
from typing import Any, Literal

import msgspec
from starlette.requests import Request

from frontend.responses import JsonReply
from messages.config import Config
from messages.errors import ErrorInfo, RequestError


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["sluice"] = "sluice"
    root: str
    max_model_len: int


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    data: tuple[ModelCard, ...]


class InfoApi:
    def __init__(self, config: Config):
        facts = config.facts
        created = int(time.time())
        self._config = config
        self._cards = {
            name: ModelCard(id=name, created=created, root=facts.model_dir, max_model_len=facts.max_model_len)
            for name in facts.served_names
        }
        self._version = find_version()

    async def models(self, request: Request) -> JsonReply:
        return JsonReply(ModelList(data=tuple(self._cards.values())))

    async def model(self, request: Request) -> JsonReply:
        """Raises `RequestError` (404) for a name that is not served."""
        name = request.path_params["id"]
        card = self._cards.get(name)
        if card is None:
            raise RequestError(
                ErrorInfo(404, f"The model `{name}` does not exist", "not_found_error", "model", "model_not_found")
            )
        return JsonReply(card)

    async def version(self, request: Request) -> JsonReply:
        return JsonReply({"version": self._version})

    async def server_info(self, request: Request) -> JsonReply:
        """The configuration as all processes read it, and the facts that the launcher found out about the model."""
        config: dict[str, Any] = {
            section: getattr(self._config, section) for section in Config.__struct_fields__ if section != "facts"
        }
        return JsonReply({"version": self._version, "config": config, "model": self._config.facts})


def find_version() -> str:
    """Returns the installed version; a checkout that was never installed has none."""
    try:
        return importlib.metadata.version("sluice")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
