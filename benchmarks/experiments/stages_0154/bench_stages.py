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
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
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


def parse_options(text: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="of each side, in turns (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result to FILE")
    return parser.parse_args()


def measure_in_turns(
    sides: Iterable[str], serving: Callable[[str], AbstractContextManager[str]], num_rounds: int
) -> dict[str, dict[str, list[float]]]:
    """Returns the rates of each side's rounds, the best ones first. `serving` starts a side and gives its URL."""
    found: dict[str, dict[str, list[float]]] = {side: {} for side in sides}
    for number in range(num_rounds):
        for side, rates in found.items():
            with serving(side) as url:
                generate(url, [number + 5, 6, 7], 16)
                round_rates = {name: round(rate, 1) for name, rate in measure(url, number + 30).items()}
            print(side, round_rates, flush=True)
            for name, rate in round_rates.items():
                rates.setdefault(name, []).append(rate)
    return {side: {name: sorted(own, reverse=True) for name, own in rates.items()} for side, rates in found.items()}


@contextmanager
def serving(side: str) -> Iterator[str]:
    with started_server(["--model", str(MODEL), *FLAGS, *SIDES[side]], TIMEOUT_S) as (_, target):
        yield f"http://{target.host}:{target.port}"


def main() -> None:
    options = parse_options(__doc__)
    found = measure_in_turns(SIDES, serving, options.rounds)
    medians = {side: {name: statistics.median(own) for name, own in rates.items()} for side, rates in found.items()}
    print(json.dumps(medians, indent=1))
    if options.json:
        write_result(options.json, "stages", medians)


if __name__ == "__main__":
    main()
