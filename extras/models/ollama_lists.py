"""Ollama's endpoints about models in the router, which load no model: `/api/tags`, `/api/ps` and `/api/show`."""

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial

from starlette.requests import Request

from extras.models.chosen_model import find_model
from extras.models.config import ModelEntry
from extras.models.lists import expires_at
from extras.models.model_table import ModelTable
from extras.models.residency import Residency
from extras.ollama.body import ModelBody
from extras.ollama.errors import OLLAMA_ERRORS
from extras.ollama.models import NEVER, Details, LocalModel, LocalModels, Shown, ShownModel, rfc3339
from extras.ollama.part import plain_routes
from frontend.errors import UnavailableError
from frontend.http.body import BodyDecoder
from frontend.http.endpoint import Endpoint
from frontend.http.field_names import NameRules
from frontend.http.responses import JsonReply
from frontend.parsing.model_format import load_model_format
from frontend.requests.trace import trace_of
from runtime.gguf.gguf_file import SUFFIX
from runtime.model_files import is_weight_file


class OllamaLists:
    def __init__(self, table: ModelTable, residency: Residency, entries: Iterable[ModelEntry]):
        self._table = table
        self._paths = {entry.name: entry.path for entry in entries if not entry.is_on_hub}
        self._residency = residency
        self._decoder = BodyDecoder(ModelBody, NameRules(renamed={"name": "model"}), needs_type=False)
        self._shown: dict[str, ShownModel] = {}
        """By the file of the model's configuration."""

    async def tags(self, request: Request) -> JsonReply:
        """Returns the models whose files are on this machine, also those that have not been read yet."""
        names = trace_of(request.scope).client.usable(self._table.names)
        known = {name: shown.local(name) for name, shown in self._known(names)}
        models = (known.get(name) or self._unread(name) for name in names)
        return JsonReply(LocalModels([model for model in models if model]))

    async def running(self, request: Request) -> JsonReply:
        return JsonReply(
            LocalModels(
                [
                    shown.running(name, description.num_bytes, expires_at(self._residency, name) or NEVER)
                    for name, shown in self._known(trace_of(request.scope).client.usable(self._table.loaded()))
                    if (description := self._table.reports[name].description)
                ]
            )
        )

    async def show(self, request: Request) -> JsonReply:
        """Raises `RequestError`: 404 for an unknown model, 503 for one whose files have not been read yet."""
        body = (await self._decoder.receive(request)).fields
        name = find_model(self._table, body.model, request, is_ollama=True)
        for _, shown in self._known([name]):
            return JsonReply(shown.shown(body.model))
        raise UnavailableError(f"the files of the model {name} have not been read yet", "loading")

    def _unread(self, name: str) -> LocalModel | None:
        """Returns what is known of a model before its files are read; `None` if they are elsewhere or faulty."""
        path = self._paths.get(name)
        if path is None or self._table.reports[name].description:
            return None
        with suppress(OSError, ValueError, IndexError):  # the last ones: without weights
            files = [file for file in path.iterdir() if is_weight_file(file.name)] if path.is_dir() else [path]
            stats = [file.stat() for file in files]
            details = Details(
                format="gguf" if files[0].suffix == SUFFIX else "safetensors",
                family="",
                families=(),
                quantization_level="",
            )
            return LocalModel(
                name=name,
                model=name,
                modified_at=rfc3339(max(stat.st_mtime for stat in stats)),
                size=sum(stat.st_size for stat in stats),
                digest=hashlib.sha256(repr(stats).encode()).hexdigest(),
                details=details,
            )
        return None

    def _known(self, names: Iterable[str]) -> Iterator[tuple[str, ShownModel]]:
        for name in names:
            config, description = self._table.config(name), self._table.reports[name].description
            if config and description:
                if description.config_file not in self._shown:
                    self._shown[description.config_file] = ShownModel(config, load_model_format(config))
                yield name, self._shown[description.config_file]


def make_ollama_lists(lists: OllamaLists) -> list[Endpoint]:
    """Returns the endpoints of Ollama's API that the router answers itself."""
    ollama = partial(Endpoint, tag="Ollama", error_form=OLLAMA_ERRORS)
    return [
        ollama("/api/tags", lists.tags, "The models", LocalModels),
        ollama("/api/ps", lists.running, "The models in memory", LocalModels),
        ollama("/api/show", lists.show, "What a model is and can do", Shown, "POST", body=ModelBody, errors=(404,)),
        *plain_routes(),
    ]
