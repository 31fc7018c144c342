"""Images of a running server of the OpenAI API: time to first token, and the gaps of text streams next to images.

    python -m benchmarks.experiments.images_0146.bench_images --url URL [--model NAME] [--text] --json FILE

Measures one picture of 1024 x 1024 pixels, eight different ones after another, and one in ten turns of a chat. With
`--text`, measures 16 streams of text alone and next to a client that sends a picture of 3840 x 2160 pixels a second.
"""

import argparse
import base64
import io
import itertools
import json
import statistics
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.result_file import write_result

NUM_STREAMS, STREAM_TOKENS = 16, 400
TIMEOUT_S = 600
SIZE, LARGE = (1024, 1024), (3840, 2160)
IMAGE_TOKENS = 8
"""The tokens of an answer about a picture."""

Message = dict[str, Any]


class Client:
    def __init__(self, url: str, model: str):
        self._url, self._model = url, model

    def stream(self, messages: list[Message], num_tokens: int) -> Iterator[tuple[float, str]]:
        """Yields the text of an answer in pieces, and "" at its end, each with the seconds since the request."""
        fields = {"max_tokens": num_tokens, "temperature": 0, "stream": True, "ignore_eos": True}
        body = json.dumps({"model": self._model, "messages": messages, **fields}).encode()
        request = urllib.request.Request(f"{self._url}/v1/chat/completions", body, {"Content-Type": "application/json"})
        begin_s = time.monotonic()
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            for line in answer:
                choices = json.loads(line[6:]).get("choices") if line.startswith(b"data: {") else None
                if choices and (choices[0]["delta"].get("content") or choices[0]["finish_reason"]):
                    yield time.monotonic() - begin_s, choices[0]["delta"].get("content") or ""

    def ask(self, messages: list[Message]) -> tuple[float, str]:
        """Returns the time to the first token, and the answer."""
        pieces = list(self.stream(messages, IMAGE_TOKENS))
        return pieces[0][0], "".join(text for _, text in pieces)


def user(picture: str, text: str) -> Message:
    return {
        "role": "user",
        "content": [{"type": "image_url", "image_url": {"url": picture}}, {"type": "text", "text": text}],
    }


def picture(seed: int, size: tuple[int, int] = SIZE) -> str:
    """Returns a picture of squares as a data: URL."""
    squares = np.random.default_rng(seed).integers(0, 256, (size[1] // 32, size[0] // 32, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(squares.repeat(32, 0).repeat(32, 1)).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def measure_images(client: Client, seed: int) -> dict[str, Any]:
    """Returns seconds. No picture has been sent before."""
    first_s, _ = client.ask([user(picture(seed), "What is it?")])
    second_s, _ = client.ask([user(picture(seed + 1), "What is it?")])
    begin_s = time.monotonic()
    for index in range(8):
        client.ask([user(picture(seed + 2 + index), "What is it?")])
    eight_s = time.monotonic() - begin_s
    messages, turns_s = [user(picture(seed + 99), "Turn 0?")], list[float]()
    for index in range(10):
        seconds, answer = client.ask(messages)
        turns_s.append(round(seconds, 3))
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": f"Turn {index + 1}?"}]
    return {
        "first_s": round(first_s, 3),
        "second_s": round(second_s, 3),
        "eight_s": round(eight_s, 2),
        "turns_s": turns_s,
        "sum_of_turns_s": round(sum(turns_s), 2),
    }


def measure_text(client: Client, seed: int, *, has_images: bool) -> dict[str, float]:
    """Returns the gaps between tokens of text streams in ms, and how many pictures were answered meanwhile."""
    gaps: list[float] = []
    ended, num_images = threading.Event(), itertools.count()

    def read(number: int) -> None:
        messages = [{"role": "user", "content": f"Story {number}, please."}]
        times = [at for at, _ in client.stream(messages, STREAM_TOKENS)]
        gaps.extend(1e3 * (later - earlier) for earlier, later in itertools.pairwise(times[2:]))

    def send_pictures() -> None:
        for index in itertools.count():
            begin_s = time.monotonic()
            client.ask([user(picture(seed + index, LARGE), "What is it?")])
            next(num_images)
            if ended.wait(max(0.0, 1 - (time.monotonic() - begin_s))):
                return

    streams = [threading.Thread(target=read, args=(number,)) for number in range(NUM_STREAMS)]
    pictures = threading.Thread(target=send_pictures, daemon=True)
    for thread in [*streams, pictures] if has_images else streams:
        thread.start()
    for thread in streams:
        thread.join()
    ended.set()
    return {
        "median_ms": round(statistics.median(gaps), 2),
        "p99_ms": round(statistics.quantiles(gaps, n=100)[98], 2),
        "pictures": next(num_images),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="the server (default: %(default)s)")
    parser.add_argument("--model", default="", help="its name for the model (default: the first that it lists)")
    parser.add_argument("--text", action="store_true", help="measure text streams next to images instead")
    parser.add_argument("--rounds", type=int, default=3, help="of --text, in turns (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result to FILE")
    options = parser.parse_args()
    model = options.model
    if not model:
        with urllib.request.urlopen(f"{options.url}/v1/models") as answer:
            model = json.load(answer)["data"][0]["id"]
    client = Client(options.url, model)
    result: dict[str, Any] = {"model": model}
    if options.text:
        for number in range(options.rounds):
            for name in ("alone", "next_to_images"):
                measured = measure_text(client, 1000 * number, has_images=name != "alone")
                result.setdefault(name, []).append(measured)
                print(name, measured, flush=True)
    else:
        result |= measure_images(client, 0)
        print(json.dumps(result, indent=1))
    if options.json:
        write_result(options.json, "images", result)


if __name__ == "__main__":
    main()
