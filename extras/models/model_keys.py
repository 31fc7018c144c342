"""The keys of a server of several models: a model with an `api-key` of its own has that instead of the shared ones."""

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from extras.models.config import ModelEntry
from frontend.errors import no_such_model
from frontend.http.keys import Keys, load_keys, load_named_keys, read_keys
from messages.config.http import HttpConfig
from messages.config.server import Config
from messages.errors import RequestError

FLAGS = {"api_key": "--api-key=", "admin_key": "--admin-key="}

Headers = Sequence[tuple[bytes, bytes]]


class ModelKeys:
    """Raises `BootError` if a key is invalid. `any`: the keys without which nothing is read of a request."""

    def __init__(self, config: Config, entries: Iterable[ModelEntry]):
        http, named = config.http, load_named_keys(config)
        of_models = {entry.name: _http_of(http, entry) for entry in entries}
        self._keys = {name: load_keys(each, named) for name, each in of_models.items()}
        everywhere = (http, *of_models.values())
        clients = {key for each in everywhere for key in read_keys("--api-key", each.api_key)}
        operators = {key for each in everywhere for key in read_keys("--admin-key", each.admin_key)}
        self.any = Keys(clients if http.api_key or named else (), operators, named)

    def check(self, name: str, headers: Headers) -> None:
        """Raises `RequestError`: 401 without a key of the model, 404 if the key is not for the model."""
        if not self._keys[name].check("client", headers).may_use((name,)):
            raise no_such_model(name)

    def opened(self, names: Sequence[str], headers: Headers) -> list[str]:
        """Returns the models whose keys the request has. Raises `RequestError` (401, 404) if there are none."""
        opened: list[str] = []
        for name in names:
            try:
                self.check(name, headers)
                opened.append(name)
            except RequestError:
                if name == names[-1] and not opened:
                    raise
        return opened


def model_flags(shared: Iterable[str], entry: ModelEntry) -> list[str]:
    """Returns all flags of a model: of the shared keys, those of which it has none of its own."""
    own = tuple(start for start in FLAGS.values() if any(flag.startswith(start) for flag in entry.flags))
    return [*(flag for flag in shared if not flag.startswith(own)), *entry.flags]


def _http_of(http: HttpConfig, entry: ModelEntry) -> HttpConfig:
    own = {
        name: tuple(flag.removeprefix(start) for flag in entry.flags if flag.startswith(start))
        for name, start in FLAGS.items()
    }
    return replace(http, **{name: keys for name, keys in own.items() if keys})
