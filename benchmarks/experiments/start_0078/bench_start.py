"""Start-up time of a server: from launch to the client's first token.

    python -m benchmarks.experiments.start_0078.bench_start --starts 8 --json FILE

A client connects as early as possible and repeats its request until it is admitted (a starting server answers 503).
One model is the bundled one; the other has the shape of GPT-2 with random weights in a file, which is then in the page
cache. Compiled modules are kept, as in an installation. With `--before DIR`, a checkout of other code with the same
environment, the two take turns at starting first. CPU time is that of all server processes until the first token.
"""

import argparse
import http.client
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil
import torch
from safetensors.torch import save_file

from benchmarks.load.connection import Target
from benchmarks.model_shapes import SHAPES, write_model
from benchmarks.result_file import ROOT, write_result
from benchmarks.server_process import ServerProcess
from messages.errors import SluiceError
from scheduler_proc.computing.hf_config import read_hf_config
from scheduler_proc.computing.model.families.registry import find_family

BUNDLED = ROOT / "assets" / "shakespeare-gpt2"
SHAPE = "gpt2-124m"
TIMEOUT_S = 300.0
BODY = json.dumps({"prompt": "Once upon a time", "max_tokens": 8, "stream": True})


class Start(msgspec.Struct, frozen=True):
    """One start, in seconds from the launcher's: until it listened, and until a client had a token.

    `cpu_s` is the CPU time of all processes of the server until that token, `scheduler_cpu_s` that of its scheduler.
    """

    listens_s: float
    first_token_s: float
    cpu_s: float
    scheduler_cpu_s: float


def main(arguments: list[str] | None = None) -> int:
    """Returns 0, or 1 if a server cannot be measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--starts", type=int, default=8, help="of each model and side (default: %(default)s)")
    add("--before", type=Path, metavar="DIR", help="a checkout of the code before")
    add("--json", type=Path, metavar="FILE", help="write the result to FILE")
    options = parser.parse_args(arguments)
    sides = {"before": options.before.resolve(), "after": ROOT} if options.before else {"now": ROOT}
    results: dict[str, Any] = {}
    try:
        with tempfile.TemporaryDirectory(prefix="sluice-start-") as directory:
            write_shape(Path(directory))
            for model, flags in {"bundled": [], SHAPE: ["--model", directory]}.items():
                results[model] = measure(sides, flags, options.starts)
                print(f"{model}: {json.dumps({side: each['median'] for side, each in results[model].items()})}")
    except (SluiceError, OSError) as error:
        print(f"bench_start: {error}", file=sys.stderr)
        return 1
    if options.json:
        write_result(options.json, "start", results)
    return 0


def write_shape(model_dir: Path) -> None:
    """Writes a model of GPT-2's shape with random weights in float32."""
    write_model(model_dir, SHAPES[SHAPE], BUNDLED)
    hf_config = read_hf_config(model_dir)
    family = find_family(hf_config)
    sources = family.list_sources(family.describe(hf_config, hf_config.count("n_positions")))
    weights = {source.name: torch.randn(source.shape) * 0.02 for source in sources}
    save_file(weights, model_dir / "model.safetensors", metadata={"format": "pt"})


def measure(sides: dict[str, Path], flags: Sequence[str], num_starts: int) -> dict[str, Any]:
    """Returns all starts of each side, with the least and the median. Raises `ServerUnavailableError`."""
    starts: dict[str, list[Start]] = {side: [] for side in sides}
    for number in range(num_starts):
        for side in list(sides)[:: 1 if number % 2 else -1]:
            starts[side].append(start_once(sides[side], flags))
            print(f"{side}: {starts[side][-1]}", flush=True)
    return {side: summary(ones) for side, ones in starts.items()}


def summary(starts: Sequence[Start]) -> dict[str, Any]:
    def each(choose: Any) -> dict[str, float]:
        columns = {name: [getattr(one, name) for one in starts] for name in Start.__struct_fields__}
        return {name: round(choose(values), 3) for name, values in columns.items()}

    return {"median": each(statistics.median), "least": each(min), "starts": starts}


def start_once(root: Path, flags: Sequence[str]) -> Start:
    """Starts a server of the code in `root` and stops it again. Raises `ServerUnavailableError`."""
    server = ServerProcess(flags, root)
    try:
        server.wait_until_ready(TIMEOUT_S, lambda target: True)
        listens_s = time.monotonic() - server.begin_s
        server.wait_until_ready(TIMEOUT_S, has_first_token)
        first_token_s = time.monotonic() - server.begin_s
        pids = {"launcher": server.pid, **server.run_dir.pids()}
        times = {name: psutil.Process(pid).cpu_times() for name, pid in pids.items()}
        cpu_s = {name: round(each.user + each.system, 2) for name, each in times.items()}
        return Start(round(listens_s, 3), round(first_token_s, 3), round(sum(cpu_s.values()), 2), cpu_s["scheduler"])
    finally:
        server.stop()


def has_first_token(target: Target) -> bool:
    """True if a request that is sent now gets a token."""
    connection = http.client.HTTPConnection(target.host, target.port, timeout=TIMEOUT_S)
    try:
        connection.request("POST", "/generate", BODY, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status == 200 and response.readline().startswith(b"data:")
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


if __name__ == "__main__":
    raise SystemExit(main())
