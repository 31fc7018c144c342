"""A port of this machine for a server that a test starts later."""

import random
import socket
from pathlib import Path

PORTS_OF_CONNECTIONS = Path("/proc/sys/net/ipv4/ip_local_port_range")
"""Linux gives connections, and servers on port 0, ports from this range, at any moment."""

NUM_PORTS = 10_000


def find_free_port() -> int:
    """Returns a port below those that the kernel gives to others until the server uses it."""
    end = int(PORTS_OF_CONNECTIONS.read_text(encoding="ascii").split()[0]) if PORTS_OF_CONNECTIONS.exists() else 32768
    while True:
        port = random.SystemRandom().randrange(end - NUM_PORTS, end)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
