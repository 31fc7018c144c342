"""Two stages on one machine, and the first one on another, in turns: a stream, eight streams, and a long prompt.

    python -m benchmarks.experiments.stages_0154.bench_remote_stage --json FILE

The other machine is a network namespace (Linux, root), with a thread of its own as each stage; the link between them
is a pair of virtual interfaces, and with `link_relay` one of 0.2 ms and 1 Gb/s. Needs two idle cores.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from benchmarks.experiments.stages_0154.bench_stages import FLAGS, MODEL, TIMEOUT_S, measure_in_turns, parse_options
from benchmarks.result_file import ROOT, write_result
from benchmarks.server_process import ServerProcess

NAMESPACE, HERE, THERE, PORT, RELAY_PORT = "sluice-bench", "10.77.0.1", "10.77.0.2", 7701, 7702
INSIDE = ("ip", "netns", "exec", NAMESPACE)
SIDES = ("two stages", "remote stage", "remote stage, 0.2 ms, 1 Gb/s")


@contextmanager
def namespace() -> Iterator[None]:
    """A machine at `THERE`, connected with this one, `HERE`."""
    commands = (
        f"ip netns add {NAMESPACE}",
        f"ip link add sluice0 type veth peer name sluice1 netns {NAMESPACE}",
        f"ip addr add {HERE}/24 dev sluice0",
        "ip link set sluice0 up",
        f"ip netns exec {NAMESPACE} ip addr add {THERE}/24 dev sluice1",
        f"ip netns exec {NAMESPACE} ip link set sluice1 up",
        f"ip netns exec {NAMESPACE} ip link set lo up",
    )
    try:
        for command in commands:
            subprocess.run(command.split(), check=True)
        yield
    finally:
        subprocess.run(["ip", "netns", "del", NAMESPACE], check=False)


@contextmanager
def running(*command: str) -> Iterator[None]:
    process = subprocess.Popen([*INSIDE, sys.executable, *command], cwd=ROOT)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


@contextmanager
def serving(side: str) -> Iterator[str]:
    """Starts both machines; gives the server's URL."""
    flags = ["--model", str(MODEL), *FLAGS, "--pipeline-parallel", "2"]
    is_remote = side != SIDES[0]
    with ExitStack() as stack:
        server = ServerProcess([*flags, *(["--remote-stages", f"tcp://{HERE}:{PORT}"] if is_remote else [])])
        stack.callback(server.stop)
        if is_remote:
            address = f"tcp://{HERE}:{PORT}"
            if side == SIDES[2]:
                relay = "--listen", f"{THERE}:{RELAY_PORT}", "--to", f"{HERE}:{PORT}", "--ms", "0.2", "--gbit", "1"
                stack.enter_context(running("-m", "benchmarks.experiments.stages_0154.link_relay", *relay))
                address = f"tcp://{THERE}:{RELAY_PORT}"
            while not server.run_dir.join_keys.exists():
                time.sleep(0.05)
            keys = "--key-file", str(server.run_dir.join_keys)
            stack.enter_context(running("launch.py", "join", address, *keys, "--cpu-threads", "1"))
        target = server.wait_until_ready(TIMEOUT_S)
        yield f"http://{target.host}:{target.port}"


def main() -> None:
    options = parse_options(__doc__)
    with namespace():
        rates = measure_in_turns(SIDES, serving, options.rounds)
    print(json.dumps(rates, indent=1))
    if options.json:
        write_result(options.json, "remote_stage", rates)


if __name__ == "__main__":
    main()
