"""`launch.py ps --keys`: the keys of a running server, their limits and their usage."""

import argparse

from msgspec.structs import asdict

from extras.keys.config import KeysConfig
from extras.keys.key_file import read_key_file
from extras.keys.ledger import KeyUsage, Ledger
from supervisor.cli.results import DONE, FAILED, complain, print_json
from supervisor.cli.show import join_columns
from supervisor.client.running import RunningServer

COLUMNS = ("KEY", "SHARE", "RUNNING", "REQUESTS", "PROMPT", "CACHED", "OUTPUT", "SECONDS", "LIMITED", "LIMITS")


def list_keys(options: argparse.Namespace, server: RunningServer) -> int:
    """Raises `UsageError` for a file that cannot be read."""
    section = KeysConfig.of(server.config)
    if section.key_file is None:
        complain(options, "no_api_keys", "the server has no keys with names: it was started without --api-keys")
        return FAILED
    ledger = Ledger(section.usage_file, is_writer=False)
    known = ledger.read_all()
    ledger.close()
    entries = read_key_file(section.key_file)
    shown = [(name, entry, *known.get(name, (KeyUsage(), 0))) for name, entry in entries.items()]
    if options.json:
        hidden = {name: {**asdict(entry), "running": num, **used._asdict()} for name, entry, used, num in shown}
        print_json({"file": str(section.key_file), "keys": hidden})
        return DONE
    cells: list[list[str]] = []
    for name, entry, used, running in shown:
        limits = {
            "req/min": entry.requests_per_minute,
            "tok/min": entry.tokens_per_minute,
            "running": entry.max_running,
            "priority": entry.priority,
        }
        texts = [f"{unit} {value}" for unit, value in limits.items() if value is not None]
        numbers = [entry.share, running, *used._replace(seconds=round(used.seconds, 1))]
        cells.append([name, *map(str, numbers), ", ".join(texts) or "-"])
    print("\n".join(join_columns(COLUMNS, cells)))
    return DONE
