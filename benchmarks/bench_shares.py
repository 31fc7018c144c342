"""How clients share one scheduler: the wait for a first token next to a large client, shares of tokens, total steps.

python -m benchmarks.bench_shares [--json FILE] [--url http://HOST:PORT]

Without a URL, times are steps of a scheduler without a model. With one, clients are addresses of the loopback network.
"""

import argparse
import gc
import http.client
import json
import random
import statistics
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from benchmarks.bench_schedule import output_of, random_ids
from benchmarks.result_file import write_result
from messages.columns import unpack_int32, unpack_int64
from messages.ring.replies import DetokenizeMsg
from messages.ring.requests import SamplingParams, Stamps, UserMsg
from scheduler_proc.deciding.pages.block_allocator import BlockAllocator
from scheduler_proc.deciding.requests import Limits
from scheduler_proc.deciding.scheduler import Scheduler
from scheduler_proc.deciding.step_plan import Budget

VOCAB_SIZE = 50_257
NUM_BODIES = 64
NUM_CHOICES = 64
PROMPT_TOKENS = (20, 200, 1_500)
WAIT_S = 300

Row = dict[str, str | float]


class Steps:
    """A scheduler without a model, and the tokens that each request and each client has had."""

    def __init__(self, num_pages: int = 16_384, max_num_seqs: int = 256, max_num_batched_tokens: int = 2_048):
        budget = Budget(max_num_seqs, max_num_batched_tokens)
        self.scheduler = Scheduler(BlockAllocator(num_pages, 16), Limits(8_192, VOCAB_SIZE, ()), budget)
        self.chance = random.Random(0)
        self.client_of: dict[int, str] = {}
        self.tokens: Counter[int] = Counter()
        """Output tokens by request."""
        self.computed: Counter[str] = Counter()
        """Tokens of all steps by client."""
        self.finished: list[int] = []
        self.num_steps = 0
        self.plan_s = 0.0

    def send(self, client: str, num_tokens: int, max_tokens: int, num_choices: int = 1, share: int = 1) -> int:
        """Sends one HTTP request; returns the uid of its first choice."""
        prompt, first = random_ids(self.chance, num_tokens), len(self.client_of) + 1
        for uid in range(first, first + num_choices):
            params = SamplingParams(max_tokens, temperature=0.6, seed=uid, ignore_eos=True)
            stamps = Stamps(received_ns=time.monotonic_ns())
            self.client_of[uid] = client
            self.scheduler.receive(UserMsg(uid, 0, prompt, params, stamps, group=first, client=client, share=share))
        return first

    def step(self) -> bool:
        """Runs one step; returns False if there is nothing to do."""
        start_s = time.process_time()
        batch = self.scheduler.schedule()
        self.plan_s += time.process_time() - start_s
        if batch is None:
            return False
        self.num_steps += 1
        for uid, num_tokens in zip(unpack_int64(batch.uids), unpack_int32(batch.query_lens), strict=True):
            self.computed[self.client_of[uid]] += num_tokens
        self.scheduler.commit(output_of(batch))
        for reply in self.scheduler.pop_replies():
            if isinstance(reply, DetokenizeMsg):
                self.tokens.update(unpack_int64(reply.uids))
                self.finished += [row.uid for row in reply.finished]
        return True

    def wait_for(self, uid: int) -> int:
        """Returns the number of steps until a request has its first token."""
        begin = self.num_steps
        while not self.tokens[uid] and self.step():
            pass
        return self.num_steps - begin


def measure_delay(num_tokens: int, num_pages: int) -> Row:
    """The steps to the first token of requests of one client, while another has 64 requests with 64 choices."""
    waits: list[int] = []
    for num_before in (0, 1, 2, 5, 20, 100):
        steps = Steps(num_pages)
        for _ in range(NUM_BODIES):
            steps.send("large", num_tokens, 400, NUM_CHOICES)
        for _ in range(num_before):
            steps.step()
        waits += [steps.wait_for(steps.send("small", 200, 20)) for _ in range(3)]
    return {
        "what": f"wait next to {NUM_BODIES} × {NUM_CHOICES} choices of {num_tokens} tokens, {num_pages} pages",
        "median_steps": statistics.median(waits),
        "most_steps": max(waits),
    }


def jain(values: Sequence[float]) -> float:
    """Returns Jain's index of fairness: 1 if all are equal, 1/n if one has all."""
    return sum(values) ** 2 / (len(values) * sum(value * value for value in values))


def measure_clients(num_clients: int, num_steps: int) -> Row:
    """Clients of which every second one keeps eight times as many requests open as the others, in a closed loop."""
    steps = Steps()
    opened: dict[int, int] = {}
    waits: list[int] = []

    def open_one(client: int) -> None:
        uid = steps.send(f"client {client}", steps.chance.randint(100, 700), steps.chance.randint(20, 120))
        opened[uid] = steps.num_steps

    for client in range(num_clients):
        for _ in range(4_096 // num_clients if client % 2 == 0 else 512 // num_clients):
            open_one(client)
    while steps.num_steps < num_steps and steps.step():
        for uid in [uid for uid in opened if steps.tokens[uid]]:
            waits.append(steps.num_steps - opened.pop(uid))
        for uid in steps.finished:
            open_one(int(steps.client_of[uid].split()[1]))
        steps.finished.clear()
    outputs: Counter[str] = Counter()
    for uid, num_tokens in steps.tokens.items():
        outputs[steps.client_of[uid]] += num_tokens
    waits += [steps.num_steps - since for since in opened.values()]
    return {
        "what": f"{num_clients} clients, {num_steps} steps",
        "tokens_per_step": steps.computed.total() / steps.num_steps,
        "output_tokens": outputs.total(),
        "jain": jain([steps.computed[f"client {client}"] for client in range(num_clients)]),
        "median_wait_steps": statistics.median(waits),
        "most_wait_steps": max(waits),
        "preemptions": steps.scheduler.gauges()["preemptions"],
        "plan_us": steps.plan_s / steps.num_steps * 1e6,
    }


class Client(threading.Thread):
    """A client at an address of its own, which sends bodies one after another until `ended` is set."""

    def __init__(self, url: str, address: str, bodies: Iterator[dict[str, object]], ended: threading.Event):
        super().__init__(daemon=True)
        self._parts, self._address, self._bodies, self._ended = urlsplit(url), address, bodies, ended
        self.first_s: list[float] = []
        self.num_tokens = 0

    def run(self) -> None:
        for body in self._bodies:
            if self._ended.is_set():
                return
            self._send(body)

    def _send(self, body: dict[str, object]) -> None:
        connection = http.client.HTTPConnection(
            self._parts.hostname or "", self._parts.port, timeout=WAIT_S, source_address=(self._address, 0)
        )
        start_s, is_first = time.monotonic(), True
        connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
        response = connection.getresponse()
        for line in response if response.status == 200 else ():
            if not line.startswith(b"data: {"):
                continue
            self.num_tokens += 1
            if is_first:
                self.first_s.append(time.monotonic() - start_s)
                is_first = False
            if self._ended.is_set():
                break
        connection.close()
        if response.status != 200:
            time.sleep(1)


def bodies(seed: int, num_words: int, max_tokens: int, num_choices: int = 1) -> Iterator[dict[str, object]]:
    chance = random.Random(seed)
    while True:
        prompt = " ".join(str(chance.randrange(10_000)) for _ in range(num_words))
        yield {
            "prompt": prompt, "max_tokens": max_tokens, "n": num_choices, "temperature": 1.0, "ignore_eos": True,
            "stream": True,
        }  # fmt: skip


def measure_http_delay(url: str, num_bodies: int, num_choices: int, seconds: float) -> Row:
    """The time to the first token of one client's requests while another keeps many choices open."""
    ended = threading.Event()
    large = [Client(url, "127.0.0.2", bodies(seed, 60, 64, num_choices), ended) for seed in range(num_bodies)]
    small = Client(url, "127.0.0.3", bodies(1_000, 60, 8), ended)
    for client in large:
        client.start()
    time.sleep(2)
    small.start()
    time.sleep(seconds)
    ended.set()
    small.join(WAIT_S)
    return {
        "what": f"HTTP, next to {num_bodies} × {num_choices} choices",
        "requests": len(small.first_s),
        "median_s": statistics.median(small.first_s or [float("nan")]),
        "most_s": max(small.first_s, default=float("nan")),
        "large_tokens_per_s": sum(client.num_tokens for client in large) / (seconds + 2),
    }


def measure_http_clients(url: str, num_clients: int, seconds: float) -> Row:
    """Throughput and shares of clients that each keep four requests open, the first one sixteen."""
    ended = threading.Event()
    clients = [
        [
            Client(url, f"127.0.1.{number + 1}", bodies(number * 100 + index, 60, 32), ended)
            for index in range(max(1, (64 if number == 0 else 16) // num_clients))
        ]
        for number in range(num_clients)
    ]
    threads = [thread for each in clients for thread in each]
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    tokens = [sum(thread.num_tokens for thread in each) for each in clients]
    ended.set()
    for thread in threads:
        thread.join(WAIT_S)
    waits = [wait for thread in threads for wait in thread.first_s]
    return {
        "what": f"HTTP, {num_clients} clients",
        "tokens_per_s": sum(tokens) / seconds,
        "jain": jain(tokens),
        "median_s": statistics.median(waits),
        "most_s": max(waits),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the result here as well")
    parser.add_argument("--url", help="a running server, instead of a scheduler alone")
    parser.add_argument("--seconds", type=float, default=20, help="of each measurement over HTTP")
    parser.add_argument("--steps", type=int, default=1_000, help="of each measurement of a scheduler")
    arguments = parser.parse_args()
    gc.freeze()
    rows: list[Row] = []
    if arguments.url is None:
        rows += [measure_delay(num_tokens, pages) for pages in (16_384, 2_048) for num_tokens in PROMPT_TOKENS]
        rows += [measure_clients(num_clients, arguments.steps) for num_clients in (1, 8, 64)]
    else:
        rows.append(measure_http_delay(arguments.url, NUM_BODIES, NUM_CHOICES, arguments.seconds))
        rows += [measure_http_clients(arguments.url, num_clients, arguments.seconds) for num_clients in (1, 8, 64)]
    for row in rows:
        print(msgspec.json.encode(row).decode(), flush=True)
    if arguments.json is not None:
        write_result(arguments.json, "bench_shares", rows)


if __name__ == "__main__":
    main()
