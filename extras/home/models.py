"""`launch.py models`: the models on this machine that `--model` takes: those of the Hugging Face cache, and in folders.

    launch.py models
    launch.py models DIR ...

Each line has what to give to --model, the format of the weights and their size.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from huggingface_hub import scan_cache_dir
from huggingface_hub.errors import CacheNotFound

from messages.program import PROGRAM
from runtime.gguf.gguf_file import SUFFIX
from runtime.model_files import is_weight_file
from supervisor.client.running import find_servers
from supervisor.programs import program_parser

CONFIG = "config.json"
UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


class FoundModel(NamedTuple):
    """`name`: the value of --model. A model without weights is not complete."""

    name: str
    format: str
    num_bytes: int


def find_cached() -> Iterator[FoundModel]:
    """Yields the models in the Hugging Face cache."""
    try:
        cache = scan_cache_dir()
    except CacheNotFound:
        return
    for repository in sorted(cache.repos, key=lambda repository: repository.repo_id):
        if repository.repo_type == "model":
            files = [Path(file.file_path) for revision in repository.revisions for file in revision.files]
            yield from _describe(repository.repo_id, files)


def find_in(folder: Path) -> Iterator[FoundModel]:
    """Yields the model directories and the GGUF files in `folder` and in its folders."""
    for place in sorted([folder, *(path for path in folder.iterdir() if path.is_dir())]):
        files = [file for file in place.iterdir() if file.is_file()]
        yield from _describe(str(place), files)


def _describe(name: str, files: list[Path]) -> Iterator[FoundModel]:
    """Yields a model of safetensors or pickled weights, and each GGUF file as a model."""
    if any(file.name == CONFIG for file in files):
        weights = [file for file in files if is_weight_file(file.name) and file.suffix != SUFFIX]
        kinds = {file.suffix.removeprefix(".") for file in weights}
        yield FoundModel(
            name, "safetensors" if "safetensors" in kinds else "".join(kinds) or "no weights", _size(weights)
        )
    for file in sorted(file for file in files if file.suffix == SUFFIX):
        place = f"{name} --gguf-file {file.name}" if not Path(name).is_dir() else str(file)
        yield FoundModel(place, "gguf", _size([file]))


def _size(files: list[Path]) -> int:
    return sum(file.stat().st_size for file in {file.resolve() for file in files})


def size_text(num_bytes: int) -> str:
    for unit, name in UNITS:
        if num_bytes >= unit:
            return f"{num_bytes / unit:.1f} {name}"
    return f"{num_bytes} B"


def main() -> int:
    """Returns 0, 1 if a folder cannot be read."""
    parser = program_parser("models", __doc__)
    parser.add_argument("folders", nargs="*", type=Path, metavar="DIR", help="directories with models or GGUF files")
    options = parser.parse_args()
    configs = [server.config for server in find_servers() if server.config.model.model]
    running = {str(Path(config.model.model).resolve()) for config in configs}
    running |= {name for config in configs for name in config.facts.served_names}
    try:
        found = [*find_cached(), *(model for folder in options.folders for model in find_in(folder))]
    except OSError as error:
        print(f"{PROGRAM} models: {error}", file=sys.stderr)
        return 1
    if not found:
        print("no model is in the Hugging Face cache; --model NAME fetches one, and this command also takes folders")
        return 0
    width = max(len(model.name) for model in found)
    for model in found:
        state = "  running" if {model.name, str(Path(model.name).resolve())} & running else ""
        print(f"{model.name:<{width}}  {model.format:<11}  {size_text(model.num_bytes):>10}{state}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
