"""What the router (process `frontend`) and the host (process `models`), which starts the models' servers, exchange."""

from typing import Literal

import msgspec

ProcessOf = Literal["none", "running", "stopping"]
"""Whether a model has a launcher: it loads, serves and ends by itself; its own `/health` reports its progress."""


class Description(msgspec.Struct, frozen=True, array_like=True):
    """The facts about a model before it is loaded.

    `config_file` holds its `Config` with facts; it is empty, with an `error` for people, for a model that cannot be
    served. Bytes: of the weights in memory and of the whole KV cache. `stamp` changes with the model's files.
    """

    config_file: str = ""
    weight_bytes: int = 0
    cache_bytes: int = 0
    error: str = ""
    stamp: int = 0

    @property
    def num_bytes(self) -> int:
        return self.weight_bytes + self.cache_bytes


class ModelReport(msgspec.Struct, frozen=True, array_like=True):
    """The state of one model. `description` is `None` until its files have been read; `url`: where its launcher
    listens, or will; `error`: why its latest launcher has ended, unless it was asked to."""

    name: str
    description: Description | None = None
    process: ProcessOf = "none"
    pid: int = 0
    run_dir: str = ""
    url: str = ""
    error: str = ""


class Models(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """host → router: all models in their order on the command line, at first and after each change."""

    models: tuple[ModelReport, ...]


class WatchModels(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """router → host: send `Models` now and after each change."""


class DescribeModel(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """router → host: read this model's files before those of others; a hub model is fetched."""

    name: str


class StartModel(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """router → host: start the server of a model that has a description; no-op if it runs."""

    name: str


class StopModel(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """router → host: stop the server of a model; no-op if it does not run."""

    name: str


ToHost = WatchModels | DescribeModel | StartModel | StopModel
