"""Ollama's endpoints about models in the router, which load no model: `/api/tags`, `/api/ps` and `/api/show`."""

from collections.abc import Iterable, Iterator
from functools import partial

from starlette.requests import Request

from extras.models.chosen_model import find_model
from extras.models.lists import expires_at
from extras.models.model_table import ModelTable
from extras.models.residency import Residency
from extras.ollama.body import ModelBody
from extras.ollama.errors import OLLAMA_ERRORS
from extras.ollama.models import NEVER, LocalModels, Shown, ShownModel
from extras.ollama.part import plain_routes
from frontend.errors import UnavailableError
from frontend.http.body import BodyDecoder, read_body
from frontend.http.endpoint import Endpoint
from frontend.http.field_names import NameRules
from frontend.http.responses import JsonReply
from frontend.parsing.model_format import load_model_format

MAX_BODY_BYTES = 65536


class OllamaLists:
    def __init__(self, table: ModelTable, residency: Residency):
        self._table = table
        self._residency = residency
        self._decoder = BodyDecoder(ModelBody, NameRules(renamed={"name": "model"}))
        self._shown: dict[str, ShownModel] = {}
        """By the file of the model's configuration."""

    async def tags(self, request: Request) -> JsonReply:
        """Returns the models whose files are on this machine."""
        return JsonReply(LocalModels([shown.local(name) for name, shown in self._known(self._table.names)]))

    async def running(self, request: Request) -> JsonReply:
        return JsonReply(
            LocalModels(
                [
                    shown.running(name, description.num_bytes, expires_at(self._residency, name) or NEVER)
                    for name, shown in self._known(self._table.loaded())
                    if (description := self._table.reports[name].description)
                ]
            )
        )

    async def show(self, request: Request) -> JsonReply:
        """Raises `RequestError`: 404 for an unknown model, 503 for one whose files have not been read yet."""
        body = self._decoder.decode(await read_body(request, MAX_BODY_BYTES, needs_type=False))
        name = find_model(self._table, body.model, is_ollama=True)
        for _, shown in self._known([name]):
            return JsonReply(shown.shown(body.model))
        raise UnavailableError(f"the files of the model {name} have not been read yet", "loading")

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
