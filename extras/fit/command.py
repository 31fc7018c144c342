"""`launch.py fit MODEL`: whether a model fits into memory, and with which context.

    launch.py fit DIR
    launch.py fit FILE.gguf --memory-gb 8
    launch.py fit Qwen/Qwen3-8B --quantization int8 --max-model-len 32768

Flags of the server may follow; --memory-gb counts with that much free memory in place of what is free here. For a model
on the hub, only the configuration, the tokenizer and the headers of the weights are fetched. Exit code: 0 if it fits, 1
if not, 2 if that cannot be known.
"""

import argparse
import logging
import struct
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from huggingface_hub import HfFileSystem
from msgspec.structs import replace

from messages.config.server import Config, ModelConfig
from messages.errors import BootError, SluiceError, UsageError
from messages.program import PROGRAM
from runtime.gguf.configs import FACTOR_TENSORS
from runtime.gguf.gguf_file import SUFFIX
from runtime.gguf.header import MAX_HEADER_BYTES, read_header
from scheduler_proc.computing.kv_cache.kv_tensors import choose_num_pages
from scheduler_proc.computing.load_runner import measure_models
from scheduler_proc.computing.loading.memory_needs import MemoryNeeds
from scheduler_proc.computing.model.families.registry import needs_transformers
from scheduler_proc.computing.vision.load_tower import NO_IMAGES, ImageNeeds, measure_images
from supervisor.flags import parse_flags
from supervisor.model.fetch import TOKENIZER_FILES, WantedModel, download, find_cached, list_weights
from supervisor.model.lookup import is_path_like
from supervisor.programs import program_parser
from supervisor.run import build_config

PROCESS_BYTES = 450 << 20
"""What the launcher, the four processes and the scheduler's standby take without a model (measured: PSS)."""


class Verdict(NamedTuple):
    """`num_pages`: of the KV cache. `context`: the longest prompt plus output, 0 if it does not fit.

    `max_tokens`: what the largest KV cache would hold. `is_shortened`: the context is less than the model's.
    """

    needs: MemoryNeeds
    free_bytes: int
    num_pages: int
    context: int
    max_tokens: int
    images: ImageNeeds
    is_shortened: bool = False

    @property
    def num_bytes(self) -> int:
        return fixed_bytes(self.needs, self.images) + self.needs.sizes.num_bytes(self.num_pages)


def fixed_bytes(needs: MemoryNeeds, images: ImageNeeds = NO_IMAGES) -> int:
    """Returns everything but the KV cache."""
    own = PROCESS_BYTES + images.cache_bytes if needs.backend.keeps_memory else 0  # else they are in another memory
    return needs.weight_bytes + (needs.step_bytes or 0) + images.tower_bytes + own


def decide(config: Config, free_bytes: int | None) -> Verdict:
    """Returns the verdict for a machine with `free_bytes` of memory, or for this one as it is.

    Raises `BootError` for a model that cannot be served or whose memory only a start shows.
    """
    if needs_transformers(config):
        raise BootError(
            f"transformers computes {config.facts.served_names[0]}, so only a start shows what it takes besides its "
            "weights"
        )
    needs, images = measure_models(config), measure_images(config)
    if free_bytes is None:
        free_bytes = needs.backend.free_bytes(config, needs.placement)
    left_bytes = max(0, free_bytes - fixed_bytes(needs, images))
    sizes, page_size = needs.sizes, config.cache.block_size
    max_tokens = sizes.fit(left_bytes) * page_size
    is_sized = config.cache.kv_cache_memory_gb is not None or config.cache.num_pages is not None
    budget = left_bytes
    if not is_sized:
        budget = needs.backend.cache_bytes(config, left_bytes, sizes.num_bytes(sizes.pages_per_context))
    try:
        num_pages = choose_num_pages(config, sizes, budget)
    except BootError as error:
        if not error.fitting_len:
            return Verdict(needs, free_bytes, sizes.pages_per_context, 0, max_tokens, images)
        model = replace(config.model, max_model_len=error.fitting_len)
        facts = replace(config.facts, max_model_len=error.fitting_len)
        return decide(replace(config, model=model, facts=facts), free_bytes)._replace(is_shortened=True)
    fits = fixed_bytes(needs, images) + sizes.num_bytes(num_pages) <= free_bytes
    return Verdict(needs, free_bytes, num_pages, config.facts.max_model_len if fits else 0, max_tokens, images)


FIRST_BYTES = 1 << 20
"""The first read of a GGUF file. Its vocabulary may need more; each attempt doubles it."""

SAFETENSORS = ".safetensors"


def find_headers(model: ModelConfig, folder: Path) -> Path:
    """Returns the model in the hub's cache if all of it is there, else its files in `folder`, weights as headers.

    Raises `BootError`, also for weights whose files have no header.
    """
    kind = "none" if model.load_format == "dummy" else model.load_format
    requested = WantedModel(model.model, model.revision, kind, model.gguf_file)
    if cached := find_cached(requested):
        return cached
    names = list_weights(requested)
    if unreadable := [name for name in names if not name.endswith((SUFFIX, SAFETENSORS))]:
        raise BootError(
            f"{model.model} has pickled weights ({unreadable[0]}), which have no header that lists them; fetch it with "
            f"`hf download {model.model} --local-dir DIR`, then `fit DIR`, or give --load-format dummy to count them "
            "by config.json"
        )
    for name in names:
        try:
            files: Any = HfFileSystem()  # whose methods have no types
            with files.open(f"{model.model}/{name}", "rb", revision=model.revision, block_size=FIRST_BYTES) as remote:
                write_header(remote, folder / Path(name).name)
        except (OSError, ValueError, struct.error) as error:  # the library's are of these types
            raise BootError(f"the header of {model.model}/{name} cannot be read: {error}") from None
    if names and names[0].endswith(SUFFIX):
        return folder / Path(names[0]).name
    for file in download(requested, TOKENIZER_FILES).iterdir():
        if file.is_file() and not (folder / file.name).exists():
            (folder / file.name).symlink_to(file.resolve())
    return folder


def write_header(remote: Any, file: Path) -> None:
    """Writes a file of the size of `remote`, which is open, with nothing but its header."""
    (_write_gguf if file.suffix == SUFFIX else _write_safetensors)(remote, file)


def _write_safetensors(remote: Any, file: Path) -> None:
    (num_bytes,) = struct.unpack("<Q", beginning := remote.read(8))
    if num_bytes > MAX_HEADER_BYTES:
        raise BootError(f"{file.name}: a header of {num_bytes:,} bytes; the format allows {MAX_HEADER_BYTES:,}")
    _write(file, {0: beginning + remote.read(num_bytes)}, remote.size)


def _write_gguf(remote: Any, file: Path) -> None:
    data, num_bytes = b"", FIRST_BYTES
    while True:
        data += remote.read(num_bytes - len(data))
        _write(file, {0: data}, remote.size)
        try:
            header = read_header(file)
            is_whole = header.num_bytes <= len(data)
        except BootError:
            header, is_whole = None, False
            if len(data) >= min(remote.size, MAX_HEADER_BYTES):
                raise
        if header is not None and is_whole:
            break
        num_bytes *= 2
    factors = [header.tensors[name] for name in FACTOR_TENSORS if name in header.tensors]
    parts = {0: data}
    for tensor in factors:  # they become part of config.json
        remote.seek(tensor.offset)
        parts[tensor.offset] = remote.read(tensor.num_bytes)
    _write(file, parts, remote.size)


def _write(file: Path, parts: dict[int, bytes], num_bytes: int) -> None:
    with file.open("wb") as opened:
        for offset, data in parts.items():
            opened.seek(offset)
            opened.write(data)
        opened.truncate(num_bytes)


GIB = 2**30
REMEDIES = {
    "cpu": ("--quantization int8", "--quantization int4", "--kv-cache-dtype int8", "--max-model-len 4096"),
    "cuda": ("--kv-cache-dtype fp8", "--max-model-len 4096"),
}
"""Flags that take less memory, by kind of device."""


def main() -> int:
    parser = program_parser("fit", __doc__)
    parser.add_argument("model", metavar="MODEL", help="a GGUF file, a directory, or a name on the hub")
    parser.add_argument("--memory-gb", type=_positive, metavar="N", help="free memory to count with")
    options, flags = parser.parse_known_args()
    logging.getLogger("sluice").setLevel(logging.ERROR)  # the verdict has what loading would warn of
    try:
        with tempfile.TemporaryDirectory(prefix="sluice-fit-") as folder:
            return _report(_flags(options.model, flags, Path(folder)), options.memory_gb)
    except SluiceError as error:
        print(f"{PROGRAM} fit: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _positive(text: str) -> int:
    """Returns gigabytes as bytes."""
    try:
        value = int(float(text) * GIB)
    except (ValueError, OverflowError):
        value = 0
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of gigabytes above 0")
    return value


def _flags(name: str, flags: list[str], folder: Path) -> list[str]:
    """Returns the flags of a server of the model; of one on the hub, as far as it is in `folder` then."""
    sections: dict[str, Any] = parse_flags(["--model", name, *flags])
    if Path(name).expanduser().exists() or is_path_like(name):
        return ["--model", name, *flags]
    found = find_headers(sections["model"], folder)
    if found.is_file():  # of several in GGUF
        flags = [*flags, "--gguf-file", ""]
    return ["--model", str(found), *flags, "--served-model-name", name]


def _report(flags: list[str], free_bytes: int | None) -> int:
    config = _configure(flags)
    verdict = decide(config, free_bytes)
    for line in describe(config, verdict):
        print(line)
    if not verdict.context or verdict.is_shortened:
        for remedy in REMEDIES[verdict.needs.backend.name]:
            _try(remedy, flags, verdict)
    return 0 if verdict.context else 1


def _configure(flags: list[str]) -> Config:
    config = build_config(parse_flags(flags))
    if config.num_engines != 1 or config.run.num_ranks != 1 or not config.facts.model_dir:
        raise UsageError(
            "--data-parallel, --tensor-parallel, --pipeline-parallel, --models: only one model on one device can be "
            "counted"
        )
    return config


def describe(config: Config, verdict: Verdict) -> Iterator[str]:
    """Yields the lines about the verdict."""
    needs, page_size = verdict.needs, config.cache.block_size
    placement, sizes = needs.placement, needs.sizes
    answer = "it fits" if verdict.context else "it does not fit"
    length = f", with a context of {verdict.context:,} tokens" * verdict.is_shortened
    context = verdict.context or config.facts.max_model_len
    of_request = sizes.num_bytes(-(-context // page_size))
    cache = f"{verdict.num_pages * page_size:,} tokens in {placement.texts['kv_cache_dtype']}"
    yield f"{config.facts.served_names[0]}: {answer}{length}"
    form = placement.quantization or f"{placement.dtype_name}, or as the file has them"
    yield f"  weights    {_gib(needs.weight_bytes)}  {form}"
    if needs.step_bytes is None:
        yield "  steps             ?      measured at the start"
    else:
        yield f"  steps      {_gib(needs.step_bytes)}  results of the largest step"
    if verdict.images.tower_bytes:
        yield f"  tower      {_gib(verdict.images.tower_bytes)}  encodes images"
        yield f"  images     {_gib(verdict.images.cache_bytes)}  their encodings (--image-cache-mb)"
    if needs.backend.keeps_memory:
        yield f"  processes  {_gib(PROCESS_BYTES)}  without the model"
    if sizes.page_bytes or sizes.state_bytes:
        yield f"  KV cache   {_gib(sizes.num_bytes(verdict.num_pages))}  {cache}"
        yield f"  a request  {_gib(of_request)}  of {context:,} tokens: {of_request / context / 1024:.1f} KiB each"
    yield f"  together   {_gib(verdict.num_bytes)}  of {verdict.free_bytes / GIB:.2f} GiB for it ({placement.device})"
    if sizes.page_bytes and verdict.context:
        yield f"  at most    {verdict.max_tokens:,} tokens fit into a KV cache with all of this memory"


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / GIB:8.2f} GiB"


def _try(remedy: str, flags: list[str], before: Verdict) -> None:
    """Prints what changes with the flag `remedy`, if it helps."""
    try:
        verdict = decide(_configure([*flags, *remedy.split()]), before.free_bytes)
    except SluiceError:  # not for this model, or more than its context
        return
    if verdict.context > before.context:
        print(f"  {remedy}: {verdict.num_bytes / GIB:.2f} GiB, a context of {verdict.context:,} tokens")


if __name__ == "__main__":
    raise SystemExit(main())
