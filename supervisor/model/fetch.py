"""Fetches a model from the hub into its cache, as a process of its own: `python -m supervisor.model.fetch NAME`.

Prints the directory, or the file of a model in GGUF, and exits with 0; or prints one message for the operator and exits
with 1. Progress goes to standard error.
"""

import argparse
import contextlib
import fnmatch
import re
import sys
import threading
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import huggingface_hub
import msgspec
from huggingface_hub import constants, errors

from messages.errors import BootError
from runtime.gguf.gguf_file import SUFFIX, choose_mmproj, choose_name, part_names
from runtime.lifeline import ask_for_death_signal
from runtime.model_files import WEIGHT_FILES

ANSWER_TIMEOUT_S = 5.0
"""The time limit for the hub to answer one connection."""

LOOK_UP_TIMEOUT_S = 8.0
"""The time limit of name resolution, all addresses and all retries together."""

ROOT_FILES_ONLY = ["*/*"]
MODULE_FILE = re.compile(r"\d+_\w+/(config\.json|model\.safetensors|pytorch_model\.bin)")
"""The files of the modules of sentence-transformers, each in a directory of its own."""

TOKENIZER_FILES = ["*.json", "*.txt", "*.jinja", "tokenizer.model"]

WEIGHT_PATTERNS = {
    "auto": [files.pattern for name, files in WEIGHT_FILES.items() if name != "gguf"],
    **{load_format: [files.pattern] for load_format, files in WEIGHT_FILES.items()},
    "none": [],
    "tokenizer": [],
}
"""Formats by kind, the preferred one first."""


class WantedModel(msgspec.Struct, frozen=True):
    """The files to fetch. `kind`: auto, safetensors, pt or gguf with weights of that format, none or tokenizer without.

    `gguf_file` is the name of a model in GGUF, if the repository has several; empty for any weights.
    """

    name: str
    revision: str
    kind: str
    gguf_file: str = ""


class WeightIndex(msgspec.Struct):
    """A list of shards, as it is stored with them."""

    weight_map: dict[str, str]


class HubUnreachableError(Exception):
    """The hub gave no usable answer; the text describes what happened."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Fetches a model from the hub and prints its directory.")
    parser.add_argument("name")
    parser.add_argument("--revision", default="main")
    parser.add_argument("--requested", default="auto", choices=WEIGHT_PATTERNS)
    parser.add_argument("--gguf-file", default="")
    parser.add_argument("--parent-pid", type=int, default=0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.parent_pid:
        ask_for_death_signal(arguments.parent_pid)
    try:
        found = fetch(WantedModel(arguments.name, arguments.revision, arguments.requested, arguments.gguf_file))
    except BootError as error:
        sys.stdout.write(f"{error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    sys.stdout.write(f"{found}\n")
    return 0


def fetch(requested: WantedModel) -> Path:
    """Returns a directory that holds all wanted files: from the hub, or from the cache if there is no answer.

    For a model in GGUF, returns its file.
    Raises `BootError` with the places that were searched, and advice.
    """
    try:
        file_names = _ask_hub(requested)
    except HubUnreachableError as error:
        cached = find_cached(requested)
        if cached is None:
            raise BootError(_unreachable_text(requested, str(error))) from None
        sys.stderr.write(f"{constants.ENDPOINT} cannot be reached; using the copy of {requested.name} in the cache\n")
        return cached
    if _is_for_gguf(requested, file_names):
        file_name = choose_name(requested.name, file_names, requested.gguf_file)
        tower = choose_mmproj(file_names) if requested.kind != "tokenizer" else None
        return download(requested, [*part_names(file_name), *filter(None, [tower])], ()) / file_name
    patterns, ignored = [*TOKENIZER_FILES, *_weight_patterns(requested, file_names)], ROOT_FILES_ONLY
    if "modules.json" in file_names and WEIGHT_PATTERNS[requested.kind]:
        patterns += [name for name in file_names if MODULE_FILE.fullmatch(name)]
        ignored = [name for name in file_names if "/" in name and name not in patterns]
    return download(requested, patterns, ignored)


def list_weights(requested: WantedModel) -> list[str]:
    """Returns the names of the weight files that `fetch` would download from the hub. Raises `BootError`."""
    try:
        file_names = _ask_hub(requested)
    except HubUnreachableError as error:
        raise BootError(_unreachable_text(requested, str(error))) from None
    if _is_for_gguf(requested, file_names):
        return part_names(choose_name(requested.name, file_names, requested.gguf_file))
    patterns = _weight_patterns(requested, file_names)
    return [name for name in file_names if any(fnmatch.fnmatch(name, each) for each in patterns) and "/" not in name]


def _is_for_gguf(requested: WantedModel, file_names: Collection[str]) -> bool:
    """True if a file in GGUF is wanted, or if the repository has no other weights."""
    if requested.kind == "auto" and not requested.gguf_file:
        others = [name for name in file_names if any(fnmatch.fnmatch(name, each) for each in WEIGHT_PATTERNS["auto"])]
        return not others and any(name.endswith(SUFFIX) for name in file_names)
    return bool(requested.gguf_file) or requested.kind == "gguf"


def find_cached(requested: WantedModel) -> Path | None:
    """Returns the directory or file in the cache that holds all wanted files; `None` if there is none."""
    cached = _find_cached_gguf(requested)
    if cached is not None or requested.gguf_file or requested.kind == "gguf":
        return cached
    names = (
        ("tokenizer.json", "tokenizer_config.json", "vocab.json") if requested.kind == "tokenizer" else ("config.json",)
    )
    for name in names:
        found = huggingface_hub.try_to_load_from_cache(requested.name, name, revision=requested.revision)
        if isinstance(found, str) and _has_weights(Path(found).parent, requested.kind):
            return Path(found).parent
    return None


def _find_cached_gguf(requested: WantedModel) -> Path | None:
    """Returns the model in GGUF that the cache has whole, if it is wanted."""
    try:
        found = huggingface_hub.snapshot_download(  # pyright: ignore[reportUnknownMemberType]
            requested.name, revision=requested.revision, local_files_only=True, allow_patterns=[]
        )
        directory = Path(found)
        names = {file.relative_to(directory).as_posix() for file in directory.rglob("*") if file.exists()}
        if _is_for_gguf(requested, names):
            name = choose_name(requested.name, sorted(names), requested.gguf_file)
            return directory / name if names.issuperset(part_names(name)) else None
    except (errors.LocalEntryNotFoundError, errors.HFValidationError, BootError):
        pass
    return None


def _has_weights(directory: Path, kind: str) -> bool:
    patterns = WEIGHT_PATTERNS[kind]
    return not patterns or any(_has_all_shards(directory, pattern) for pattern in patterns)


def _has_all_shards(directory: Path, pattern: str) -> bool:
    present = {file.name for file in directory.glob(pattern)}
    if pattern.replace("*", "") in present:
        return True  # the complete model, whatever an index lists
    needed: set[str] = set()
    for index in directory.glob(f"{pattern}.index.json"):
        with contextlib.suppress(msgspec.DecodeError, RecursionError):
            needed |= set(msgspec.json.decode(index.read_bytes(), type=WeightIndex).weight_map.values())
    return bool(present) and needed <= present


def _ask_hub(requested: WantedModel) -> list[str]:
    """Returns the names of the files that the hub has. Raises `HubUnreachableError`, or `BootError` for its refusal."""
    answers: list[Any] = []
    asking = threading.Thread(target=_ask, args=(requested, answers), daemon=True)
    asking.start()
    asking.join(LOOK_UP_TIMEOUT_S)  # a thread, for name resolution knows no time limit
    if not answers:
        raise HubUnreachableError(f"no answer within {LOOK_UP_TIMEOUT_S:.0f} s")
    answer = answers[0]
    if not isinstance(answer, Exception):
        return [sibling.rfilename for sibling in answer.siblings or ()]
    raise _refusal(requested, answer) from None


def _ask(requested: WantedModel, answers: list[Any]) -> None:
    try:
        api = huggingface_hub.HfApi()
        answers.append(api.model_info(requested.name, revision=requested.revision, timeout=ANSWER_TIMEOUT_S))
    except Exception as error:  # every version of the library and its HTTP client raises its own kinds
        answers.append(error)


def _refusal(requested: WantedModel, error: Exception) -> Exception:
    """Returns what to raise for an exception of the library: a refusal that is final, or an unreachable hub."""
    name, hub = requested.name, constants.ENDPOINT
    match error:
        case errors.GatedRepoError():
            return BootError(
                f"{name} is gated: accept its terms on {hub}/{name}, then set HF_TOKEN or run `hf auth login`"
            )
        case errors.RevisionNotFoundError():
            return BootError(f"{name} has no revision {requested.revision!r} on {hub} (--revision)")
        case errors.RepositoryNotFoundError():
            return BootError(
                f"there is no model {name!r}, neither as a directory nor on {hub}; check the spelling, or set "
                "HF_TOKEN where it is private"
            )
        case errors.HFValidationError():
            return BootError(f"{name!r} is neither a directory nor a possible name on the hub (OWNER/NAME)")
        case errors.OfflineModeIsEnabled():
            return HubUnreachableError("HF_HUB_OFFLINE is set")
        case _:
            return HubUnreachableError(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")


def _weight_patterns(requested: WantedModel, file_names: list[str]) -> list[str]:
    """Returns the patterns of one weight format, safetensors first. Raises `BootError` if the hub has none."""
    formats = WEIGHT_PATTERNS[requested.kind]
    if not formats:
        return []
    for pattern in formats:
        if fnmatch.filter(file_names, pattern):
            return [pattern]
    raise BootError(f"{requested.name} has no weights that can be read: looked for {' and '.join(formats)}")


def download(requested: WantedModel, patterns: list[str], ignored: Sequence[str] = ROOT_FILES_ONLY) -> Path:
    """Returns the directory of the hub's cache with these files. Raises `BootError`."""
    try:
        directory = huggingface_hub.snapshot_download(  # pyright: ignore[reportUnknownMemberType]
            requested.name, revision=requested.revision, allow_patterns=patterns, ignore_patterns=list(ignored)
        )
    except Exception as error:  # network, disk and library each have their own kinds
        raise BootError(
            f"the download of {requested.name} broke off ({type(error).__name__}: {error}); start again to continue"
        ) from None
    return Path(directory)


def _unreachable_text(requested: WantedModel, reason: str) -> str:
    name, revision = requested.name, "" if requested.revision == "main" else f" --revision {requested.revision}"
    what, flag = ("tokenizer", "--tokenizer") if requested.kind == "tokenizer" else ("model", "--model")
    last = "" if what == "tokenizer" else "; or leave --model out: the bundled model needs no network"
    return f"""cannot find the {what} {name!r}. Looked for
  the directory  {Path(name).absolute()}: not there
  the cache      {constants.HF_HUB_CACHE}: it has no complete copy
  the hub        {constants.ENDPOINT}: {reason}
What you can do
  - give a directory that holds config.json, tokenizer and weights: {flag} DIR
  - on a machine with a network, run `hf download {name}{revision} --local-dir {name.split("/")[-1]}`, copy that
    directory here and give it ({flag} DIR); or copy that machine's cache here and point HF_HOME at it
  - set HF_ENDPOINT to a mirror or HTTPS_PROXY to a proxy that can be reached{last}"""


if __name__ == "__main__":
    raise SystemExit(main())
