"""One process and two stages in turns, each with one thread: a stream, eight streams, and a long prompt.

    python -m benchmarks.experiments.stages_0154.bench_stages --json FILE

Needs two idle cores. The model is the bundled chat model of 30 layers.
"""

import argparse
import json
import statistics
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

from benchmarks.result_file import ROOT, write_result
from benchmarks.server_process import started_server

SIDES = {"one process": (), "two stages": ("--pipeline-parallel", "2")}
FLAGS = ("--cpu-threads", "1", "--kv-cache-memory-gb", "1", "--no-standby", "--dtype", "float32")
MODEL = ROOT / "assets/smollm2-135m-instruct/SmolLM2-135M-Instruct.gguf"
NUM_STREAMS, NUM_TOKENS, PROMPT_TOKENS = 8, 128, 4000
TIMEOUT_S = 300


def generate(url: str, token_ids: list[int], max_tokens: int) -> None:
    fields = {"prompt": token_ids, "max_tokens": max_tokens, "ignore_eos": True, "stream": False}
    body, headers = json.dumps(fields).encode(), {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/generate", body, headers)
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:
        reply.read()


def seconds_of(run: Callable[[], None]) -> float:
    begin_s = time.monotonic()
    run()
    return time.monotonic() - begin_s


def measure(url: str, seed: int) -> dict[str, float]:
    """Returns rates in tokens per second."""

    def run_streams(count: int) -> None:
        prompts = [[seed, 20 + number, 7, 9] for number in range(count)]
        threads = [threading.Thread(target=generate, args=(url, prompt, NUM_TOKENS)) for prompt in prompts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    prompt = [seed, *(100 + 37 * place % 20_000 for place in range(PROMPT_TOKENS - 1))]
    return {
        "one_stream": NUM_TOKENS / seconds_of(lambda: run_streams(1)),
        "eight_streams": NUM_STREAMS * NUM_TOKENS / seconds_of(lambda: run_streams(NUM_STREAMS)),
        "prompt": PROMPT_TOKENS / seconds_of(lambda: generate(url, prompt, 1)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="of each side, in turns (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result to FILE")
    options = parser.parse_args()
    found: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    for number in range(options.rounds):
        for side, flags in SIDES.items():
            with started_server(["--model", str(MODEL), *FLAGS, *flags], TIMEOUT_S) as (_, target):
                url = f"http://{target.host}:{target.port}"
                generate(url, [number + 5, 6, 7], 16)
                found[side].append(measure(url, number + 30))
            print(side, {name: round(rate, 1) for name, rate in found[side][-1].items()}, flush=True)
    medians = {
        side: {name: round(statistics.median(run[name] for run in runs), 1) for name in runs[0]}
        for side, runs in found.items()
    }
    print(json.dumps(medians, indent=1))
    if options.json:
        write_result(options.json, "stages", medians)


if __name__ == "__main__":
    main()
