"""A server of several models: time of a switch, idle memory, its own accounting of it, and the cost of the router.

    python -m benchmarks.experiments.models_0122.bench_models A.gguf B.gguf C.gguf --json FILE

The first two models take turns in a memory that holds one of them (`--switch-memory-gb`): a switch is the time from a
request for the model that is not loaded to its first token. Then all three are loaded: a load without an unload is
timed likewise; the memory of idle processes is the sum of their PSS; and one stream is read from the router and from
the model's own server, in turn. The files are in the page cache.
"""

import argparse
import contextlib
import http.client
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.load.connection import Target
from benchmarks.result_file import write_result
from benchmarks.server_process import ProcessMemory, ServerProcess, memory
from extras.top.top import UnixConnection
from runtime.run_dir import RunDir

TIMEOUT_S = 120.0
NAMES = ("a", "b", "c")
PROMPT = "Once upon a time"
NUM_TOKENS = 200
MIB = 2**20
SETTLE_S = 3.0
"""After which the processes of a load are idle."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("models", nargs=3, metavar="MODEL")
    add("--times", type=int, default=10, help="each time is measured so often (default: %(default)s)")
    add("--switch-memory-gb", type=float, default=0.5, help="memory for one of the first two (default: %(default)s)")
    add("--flags", default="", help="further flags of the server, as one word")
    add("--json", type=Path, metavar="FILE", help="write the result to FILE")
    options = parser.parse_args(arguments)
    named = [f"--model={name}={path}" for name, path in zip(NAMES, options.models, strict=True)]
    for path in options.models:
        Path(path).read_bytes()
    flags = [*named, *options.flags.split()]
    with server_of([*flags, f"--models-memory-gb={options.switch_memory_gb}"]) as server:
        results: dict[str, Any] = {"models": options.models, "switch": summary(switches(server, options.times))}
    with server_of(flags) as server:
        results["load"] = summary(loads(server, options.times))
        for name in NAMES:
            first_token_s(server.target, name)
        time.sleep(SETTLE_S)
        results |= {"memory": tree_memory(server), "accounting": accounting(server)}
        results["stream"] = streams(server, options.times)
    print(json.dumps(results, indent=1))
    if options.json:
        write_result(options.json, "several models", results)
    return 0


class Server:
    def __init__(self, process: ServerProcess):
        self.process = process
        self.target = process.wait_until_ready(TIMEOUT_S)

    def models(self) -> dict[str, dict[str, Any]]:
        return {model["id"]: model for model in get(self.target, "/models")["data"]}

    def socket(self, name: str) -> Path:
        """Returns where the model's own server listens."""
        return RunDir(self.process.run_dir.path / "models" / name).http_socket

    def wait(self, name: str, state: str) -> None:
        while self.models()[name]["status"]["value"] != state:
            time.sleep(0.01)


@contextlib.contextmanager
def server_of(arguments: list[str]) -> Iterator[Server]:
    """A server that has read its models' files."""
    process = ServerProcess(arguments)
    try:
        server = Server(process)
        while not all("size" in model for model in server.models().values()):
            time.sleep(0.05)
        yield server
    finally:
        process.stop()


def switches(server: Server, num_times: int) -> list[float]:
    """Returns the seconds from a request to its first token, each for the model that is not loaded."""
    times_s = [first_token_s(server.target, NAMES[index % 2]) for index in range(num_times + 2)]
    return times_s[2:]


def loads(server: Server, num_times: int) -> list[float]:
    """Returns the seconds from a request to its first token while no model is loaded."""
    times_s: list[float] = []
    for _ in range(num_times + 1):
        times_s.append(first_token_s(server.target, NAMES[0]))
        post(server.target, "/models/unload", {"model": NAMES[0]}).read()
        server.wait(NAMES[0], "unloaded")
        time.sleep(SETTLE_S / 10)
    return times_s[1:]


def streams(server: Server, num_times: int) -> dict[str, Any]:
    """Returns tokens per second and the time to the first token of one stream, direct and through the router."""
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for _ in range(num_times + 1):
        for way, target in (("direct", server.socket(NAMES[0])), ("router", server.target)):
            began_s = time.perf_counter()
            first_s = 0.0
            for number, _ in enumerate(events(target, NAMES[0], NUM_TOKENS)):
                first_s = first_s if number else time.perf_counter() - began_s
            found[way].append((NUM_TOKENS / (time.perf_counter() - began_s), first_s))
    return {
        way: {
            "tokens_per_s": round(statistics.median(rate for rate, _ in values[1:]), 1),
            "first_token_ms": round(statistics.median(first_s for _, first_s in values[1:]) * 1e3, 2),
        }
        for way, values in found.items()
    }


def tree_memory(server: Server) -> dict[str, Any]:
    """Returns the PSS in MiB of all idle processes, with three models loaded."""
    processes: list[ProcessMemory] = memory(server.process.pid)
    return {
        "total_pss_mib": round(sum(process.pss_mib for process in processes), 1),
        "processes": [
            {"command": title(process.pid), "pss_mib": process.pss_mib, "rss_mib": process.rss_mib}
            for process in processes
        ],
    }


def title(pid: int) -> str:
    """Returns the beginning of a process's command line, without the interpreter and the run directory."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().partition("--run-dir")[0].split()
    return " ".join(
        word.rpartition("/")[2] for word in words if not word.endswith("python") and word not in ("-P", "-m")
    )


def accounting(server: Server) -> dict[str, Any]:
    """Returns the bytes that `/models` states for each model, and those that its scheduler has in memory, in MiB."""
    found: dict[str, Any] = {}
    for name, model in server.models().items():
        gauges = get(server.socket(name), "/health")["processes"]["scheduler"]["gauges"]
        measured = {key: gauges[key] for key in gauges if key.endswith("_bytes")}
        stated = {key: model[key] for key in ("weight_bytes", "cache_bytes")}
        found[name] = {key: round(value / MIB, 2) for key, value in {**stated, **measured}.items()}
    return found


def first_token_s(target: Target, name: str) -> float:
    began_s = time.perf_counter()
    answer = events(target, name, 4)
    next(answer)
    seconds = time.perf_counter() - began_s
    for _ in answer:
        pass
    return seconds


def events(target: Target | Path, name: str, num_tokens: int) -> Iterator[bytes]:
    """Yields the events of a stream of `num_tokens`."""
    content = {"model": name, "prompt": PROMPT, "max_tokens": num_tokens, "temperature": 0, "ignore_eos": True}
    response = post(target, "/v1/completions", {**content, "stream": True})
    assert response.status == 200, response.read()
    for line in response:
        if line.startswith(b"data: {"):
            yield line


def connect(target: Target | Path) -> http.client.HTTPConnection:
    if isinstance(target, Path):
        return UnixConnection(str(target), timeout=TIMEOUT_S)
    return http.client.HTTPConnection(target.host, target.port, timeout=TIMEOUT_S)


def post(target: Target | Path, path: str, content: dict[str, Any]) -> http.client.HTTPResponse:
    connection = connect(target)
    connection.request("POST", path, json.dumps(content), {"Content-Type": "application/json"})
    return connection.getresponse()


def get(target: Target | Path, path: str) -> Any:
    with contextlib.closing(connect(target)) as connection:
        connection.request("GET", path)
        return json.load(connection.getresponse())


def summary(times_s: list[float]) -> dict[str, Any]:
    return {"median_s": round(statistics.median(times_s), 3), "all_s": [round(seconds, 3) for seconds in times_s]}


if __name__ == "__main__":
    raise SystemExit(main())
