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
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from extras.fit.headers import find_headers
from extras.fit.verdict import PROCESS_BYTES, Verdict, decide
from messages.config.server import Config
from messages.errors import SluiceError, UsageError
from messages.program import PROGRAM
from supervisor.flags import parse_flags
from supervisor.model.lookup import is_path_like
from supervisor.programs import program_parser
from supervisor.run import build_config

GIB = 2**30
REMEDIES = {
    "cpu": ("--quantization int8", "--quantization int4", "--kv-cache-dtype int8", "--max-model-len 4096"),
    "cuda": ("--quantization fp8", "--kv-cache-dtype fp8", "--max-model-len 4096"),
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
