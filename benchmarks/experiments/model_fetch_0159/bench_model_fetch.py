"""The speed at which a joiner gets a model's files from the head, and what that costs a running engine.

    python -m benchmarks.experiments.model_fetch_0159.bench_model_fetch --gib 1 --json FILE

A server with the bundled model and one engine streams tokens, while a joiner with an empty cache fetches the model and
a further file of random bytes. The joiner is killed (SIGKILL) in the middle once and started again. Both ends run on
this machine, over loopback, and share its cores with the engine. The copy of the same file through a plain TCP
connection, without keys or encryption, is measured for comparison, and so is `cp`.
"""

import argparse
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median

import httpx

from benchmarks.result_file import write_result
from benchmarks.server_process import ROOT, ServerProcess
from kernels.cpu.build import cache_dir

MODEL_DIR = ROOT / "assets" / "shakespeare-gpt2"
EXTRA = "model-random.safetensors"
"""Fetched with the model, and ignored by the loader, since there is a whole file."""

TIMEOUT_S = 120.0
FETCHED = re.compile(rf"fetched {EXTRA} .*: ([\d.,]+) MB, ([\d.,]+) MB of them now, ([\d.,]+) MB/s")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=1.0, help="size of the random file (default: 1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result to FILE")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        model_dir = folder / "model"
        shutil.copytree(MODEL_DIR, model_dir)
        with (model_dir / EXTRA).open("wb") as file:
            for _ in range(int(options.gib * 64)):
                file.write(os.urandom(16 << 20))
        found = {"copy_mb_per_s": measure_copies(model_dir / EXTRA, folder)} | measure(model_dir, folder)
    print(json.dumps(found, indent=2))
    if options.json:
        write_result(options.json, "model_fetch", {"gib": options.gib, **found})
    return 0


def measure_copies(file: Path, folder: Path) -> dict[str, float]:
    """Returns MB/s of `cp` and of a plain TCP connection, both with fsync."""
    num_mb, found = file.stat().st_size / 1e6, dict[str, float]()
    for name in ("cp", "tcp"):
        begin_s, target = time.monotonic(), folder / f"copy-{name}"
        if name == "cp":
            subprocess.run(["cp", str(file), str(target)], check=True)
        else:
            copy_through_tcp(file, target)
        with target.open("rb+") as written:
            os.fsync(written.fileno())
        found[name] = round(num_mb / (time.monotonic() - begin_s), 1)
        target.unlink()
    return found


def copy_through_tcp(file: Path, target: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        file.open("rb") as source,
        target.open("wb") as sink,
        socket.create_connection(server.getsockname()) as sender,
    ):
        receiver, _ = server.accept()
        thread = threading.Thread(target=lambda: (sender.sendfile(source), sender.shutdown(socket.SHUT_WR)))
        thread.start()
        with receiver:
            while data := receiver.recv(1 << 20):
                sink.write(data)
        thread.join()


class Stream:
    """Streams tokens of one request after another, and keeps the time between two of them."""

    def __init__(self, url: str):
        self._url, self.gaps_ms = url, list[float]()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        request = {"prompt": "ROMEO:", "max_tokens": 200, "stream": True, "ignore_eos": True}
        with httpx.Client(timeout=TIMEOUT_S) as client:
            while not self._is_over.is_set():
                with client.stream("POST", f"{self._url}/generate", json=request) as reply:
                    last_s = 0.0
                    for line in reply.iter_lines():
                        if line.startswith("data:"):
                            now_s = time.monotonic()
                            if last_s:
                                self.gaps_ms.append((now_s - last_s) * 1e3)
                            last_s = now_s

    def close(self) -> dict[str, float]:
        """Returns the median and the 99th percentile in ms."""
        self._is_over.set()
        self._thread.join()
        gaps_ms = sorted(self.gaps_ms)
        return {"p50": round(median(gaps_ms), 3), "p99": round(gaps_ms[len(gaps_ms) * 99 // 100], 3), "n": len(gaps_ms)}


def measure(model_dir: Path, folder: Path) -> dict[str, object]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    (folder / "cache" / "sluice").mkdir(parents=True)
    for library in cache_dir().glob("kernels-*"):
        (folder / "cache" / "sluice" / library.name).symlink_to(library)
    path = f"/proc/self/cwd/{os.path.relpath(model_dir, ROOT)}"  # which leads there from the head's directory alone
    server = ServerProcess(["--model", path, "--cpu-threads", "1", "--remote-engines", address])
    try:
        target = server.wait_until_ready(TIMEOUT_S)
        url, key = f"http://{target.host}:{target.port}", server.run_dir.join_keys
        command = [sys.executable, str(ROOT / "launch.py"), "join", address, "--key-file", str(key)]
        alone = run_for(Stream(url), 6.0)
        idle = fetch(command, folder, None)
        shutil.rmtree(folder / "cache" / "sluice" / "models")
        stream = Stream(url)
        busy = fetch(command, folder, None)
        during = stream.close()
        shutil.rmtree(folder / "cache" / "sluice" / "models")
        killed = fetch(command, folder, 0.5 * (model_dir / EXTRA).stat().st_size)
        resumed = fetch(command, folder, None)
        return {
            "fetch": idle,
            "fetch_while_serving": busy,
            "token_gap_ms": alone,
            "token_gap_ms_while_fetching": during,
            "killed_at_mb": killed,
            "fetch_after_kill": resumed,
        }
    finally:
        server.stop()


def run_for(stream: Stream, seconds: float) -> dict[str, float]:
    time.sleep(seconds)
    return stream.close()


def fetch(command: list[str], folder: Path, kill_at: float | None) -> dict[str, float] | float:
    """Runs a joiner until it has fetched the file, or has `kill_at` bytes of it; ends it before its engine starts."""
    joiner = subprocess.Popen(
        command,
        cwd=folder / "cache" / "sluice",
        env={**os.environ, "XDG_CACHE_HOME": str(folder / "cache")},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert joiner.stdout is not None
    limit = threading.Timer(TIMEOUT_S, joiner.kill)
    limit.start()
    try:
        if kill_at is not None:
            while joiner.poll() is None:
                parts = list((folder / "cache" / "sluice" / "models").glob(f"*/{EXTRA}.part"))
                if parts and parts[0].stat().st_size >= kill_at:
                    joiner.send_signal(signal.SIGKILL)
                    return round(parts[0].stat().st_size / 1e6, 1)
                time.sleep(0.002)
        for line in joiner.stdout:
            found = FETCHED.search(line)
            if found:
                here, new, rate = (float(text.replace(",", "")) for text in found.groups())
                if list((folder / "cache" / "sluice" / "models").glob(f"*/{EXTRA}")):
                    return {"mb": here, "mb_sent": new, "mb_per_s": rate}
        raise RuntimeError("the joiner has ended")
    finally:
        limit.cancel()
        joiner.kill()
        joiner.wait()
        time.sleep(3.0)  # the head's proxy notices, and is replaced


if __name__ == "__main__":
    raise SystemExit(main())
