"""Takes the launcher's flags and serves a `PacedServer` from a tree of two processes, for tests of what starts servers.

The first argument selects its behaviour: `well`, `fails` (exits in its start), `starts-for-ever`, `exits-with-3`.
"""

import argparse
import asyncio
import signal
import subprocess
import sys
from pathlib import Path

from benchmarks.load.paced_server import PacedServer

STEP_S = 0.002


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("behaviour")
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", default="")
    parser.add_argument("--max-num-batched-tokens", type=int)
    parser.add_argument("--max-snapshots", type=int)
    options = parser.parse_args()
    assert options.port == 0
    print(f"loading {options.model}", flush=True)
    if options.behaviour == "fails":
        print("no weights in there", file=sys.stderr, flush=True)
        return 1
    asyncio.run(serve(options))
    return 3 if options.behaviour == "exits-with-3" else 0


async def serve(options: argparse.Namespace) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    server = PacedServer(STEP_S)
    port = await server.start()
    if options.behaviour != "starts-for-ever":
        (options.run_dir / "address").write_text(f"http://127.0.0.1:{port}", encoding="ascii")
        print("ready", flush=True)
    await stop.wait()
    await server.stop()
    child.communicate()


if __name__ == "__main__":
    raise SystemExit(main())
