"""A TCP connection with the latency and rate of a network, for kernels without `tc netem`.

    python -m benchmarks.experiments.stages_0154.link_relay --listen HOST:PORT --to HOST:PORT --ms 0.2 --gbit 1

Each direction passes on what it reads when it would have arrived: after its time on the wire and the latency.
"""

import argparse
import queue
import socket
import threading
import time

CHUNK_BYTES = 64 * 1024


def pass_on(source: socket.socket, target: socket.socket, latency_s: float, bytes_per_s: float) -> None:
    """Copies one direction until it ends."""
    on_the_way: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()

    def deliver() -> None:
        while True:
            due_s, data = on_the_way.get()
            time.sleep(max(0.0, due_s - time.monotonic()))
            try:
                target.sendall(data)
            except OSError:
                data = b""
            if not data:
                for end in (source, target):
                    end.close()
                return

    threading.Thread(target=deliver, daemon=True).start()
    free_s, data = 0.0, b"-"
    while data:
        try:
            data = source.recv(CHUNK_BYTES)
        except OSError:
            data = b""
        free_s = max(free_s, time.monotonic()) + len(data) / bytes_per_s
        on_the_way.put((free_s + latency_s, data))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for flag in ("--listen", "--to"):
        parser.add_argument(flag, required=True, metavar="HOST:PORT")
    parser.add_argument("--ms", type=float, required=True, help="latency of one direction")
    parser.add_argument("--gbit", type=float, required=True, help="Gb/s of one direction")
    options = parser.parse_args()
    host, _, port = options.listen.rpartition(":")
    to_host, _, to_port = options.to.rpartition(":")
    with socket.create_server((host, int(port))) as server:
        while True:
            near, _ = server.accept()
            try:
                far = socket.create_connection((to_host, int(to_port)))
            except OSError:
                near.close()
                continue
            for end in (near, far):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            rate = options.ms / 1000, options.gbit * 1e9 / 8
            for ends in ((near, far), (far, near)):
                threading.Thread(target=pass_on, args=(*ends, *rate), daemon=True).start()


if __name__ == "__main__":
    main()
