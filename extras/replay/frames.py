"""`launch.py tail`, `decode` and `diff`: recorded frames as people and programs read them."""

import argparse
import itertools
import sys
import time
from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from messages.frame_files import FrameFileError, FrameReader, Record, find_readers, read_records, reporting_damage
from messages.ring.plain import to_plain
from messages.ring.timeline import ScheduleReport, Tokenized
from runtime.black_box.redaction import redact
from supervisor.cli.results import complain
from supervisor.client.admin_client import AdminClient
from supervisor.client.running import RunningServer

SAME, DIFFERENT, UNUSABLE = 0, 1, 2
POLL_S = 0.2
TAIL_FRAMES = 10

CLOCK_FIELDS = ("stamps", "admitted_per_s", "evicted_s")
"""Fields that hold times, in addition to those that end in `_ns`: they differ in every run."""

TIMELY = (ScheduleReport, Tokenized)
"""Messages that are sent at certain times, so their number differs in every run."""


def add_tail_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("edge", nargs="?", default="", metavar="EDGE", help="SENDER:RECEIVER (default: all)")
    parser.add_argument(
        "-n", "--lines", type=int, default=TAIL_FRAMES, metavar="N", help=f"past frames (default: {TAIL_FRAMES})"
    )
    parser.add_argument("--no-follow", action="store_true", help="exit after the past frames")
    _add_redact(parser)
    parser.set_defaults(execute=tail)


def add_decode_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", type=Path, metavar="FILE", help="file or directory of frames")
    _add_redact(parser)
    parser.set_defaults(execute=decode)


def add_diff_options(parser: argparse.ArgumentParser) -> None:
    text = "a file of frames, or a directory of them; what each process has sent is compared, edge by edge"
    parser.add_argument("a", type=Path, metavar="A", help=text)
    parser.add_argument("b", type=Path, metavar="B", help="likewise")
    _add_redact(parser)
    parser.set_defaults(execute=diff)


def tail(options: argparse.Namespace, server: RunningServer, line: AdminClient) -> int:
    """Prints the last frames on an edge of a running server, then each new one."""
    folder = server.run_dir.black_box
    if not server.config.run.black_box_mb:
        complain(options, "impossible", "the server was started with --black-box-mb 0")
        return UNUSABLE
    readers: dict[Path, FrameReader] = {}
    first = _follow(folder, readers, options.edge)
    _print(first[-options.lines :] if options.lines else [], options)
    while not options.no_follow and folder.exists():
        sys.stdout.flush()
        time.sleep(POLL_S)
        _print(_follow(folder, readers, options.edge), options)
    return SAME


def decode(options: argparse.Namespace) -> int:
    """Prints all frames of a file or a directory, as one JSON object a line. Raises `FrameFileError`."""
    with reporting_damage(options.path):
        _print(_read(options.path), options)
    return SAME


def diff(options: argparse.Namespace) -> int:
    """Prints the first frame that differs in a relevant field, as both sides have it. Raises `FrameFileError`."""
    sides = [_read_edges(path) for path in (options.a, options.b)]
    found: list[tuple[int, str, int, Record | None, Record | None]] = []
    for edge in sorted(sides[0] | sides[1]):
        pairs = itertools.zip_longest(sides[0].get(edge, []), sides[1].get(edge, []))
        for index, (one, other) in enumerate(pairs):
            if one is None or other is None or _what_matters(one) != _what_matters(other):
                stamp = (one or other).monotonic_ns  # pyright: ignore[reportOptionalMemberAccess]
                found.append((stamp, edge, index, one, other))
                break
    if not found:
        print(f"the same: {sum(map(len, sides[0].values()))} frames on {len(sides[0])} edges")
        return SAME
    _, edge, index, one, other = min(found, key=lambda entry: entry[:3])
    print(f"frame {index} on {edge} differs")
    for name, record in (("A", one), ("B", other)):
        print(f"{name} {_as_json(record, options) if record else 'has no more frames'}")
    return DIFFERENT


def _read(path: Path) -> list[Record]:
    """Returns the records of a file or a directory, oldest first. Raises `FrameFileError`."""
    readers = find_readers(path)
    if not all(reader.is_of_this_version for reader in readers):
        print("note: written by another version of the messages: fields added since are left out", file=sys.stderr)
    return read_records(readers)


def _follow(folder: Path, readers: dict[Path, FrameReader], edge: str) -> list[Record]:
    """Returns the frames sent on `edge` (empty: on all) since the last call; new processes have new files."""
    files = set(folder.glob("*.frames"))
    for file in files - readers.keys():
        try:
            readers[file] = FrameReader(file)
        except FrameFileError:  # it is just being made
            continue
    for file in readers.keys() - files:
        del readers[file]
    return [one for one in read_records(readers.values()) if one.is_sent and edge in ("", one.edge)]


def _read_edges(path: Path) -> dict[str, list[Record]]:
    """Returns the records sent on each edge, except those sent at certain times. Raises `FrameFileError`."""
    edges: dict[str, list[Record]] = defaultdict(list)
    with reporting_damage(path):
        for record in _read(path):
            if record.is_sent and not isinstance(_message_of(record), TIMELY):
                edges[record.edge].append(record)
    return edges


def _message_of(record: Record) -> Any:
    """Returns the message, or its known fields if it cannot be decoded."""
    if record.is_cut:
        return {"cut": "the frame was too large to be kept"}
    try:
        return record.decode()
    except msgspec.DecodeError as error:
        return {"undecoded": str(error), "hex": record.body.hex()}


def _what_matters(record: Record) -> Any:
    return _without_clocks(to_plain(_message_of(record)))


def _without_clocks(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: _without_clocks(item)
            for key, item in value.items()  # pyright: ignore[reportUnknownVariableType]
            if not (key in CLOCK_FIELDS or key.endswith("_ns"))  # pyright: ignore[reportUnknownMemberType]
        }
    return [_without_clocks(item) for item in value] if isinstance(value, list) else value  # pyright: ignore[reportUnknownVariableType]


def _print(records: Iterable[Record], options: argparse.Namespace) -> None:
    for record in records:
        print(_as_json(record, options))


def _as_json(record: Record, options: argparse.Namespace) -> str:
    message = _message_of(record)
    if options.redact:
        message = redact(message) if isinstance(message, msgspec.Struct) else {"undecoded": len(record.body)}
    fields = {
        "time": datetime.fromtimestamp(record.wall_ns / 1e9, UTC).isoformat(timespec="microseconds"),
        "monotonic_ns": record.monotonic_ns,
        "process": record.process,
        "pid": record.pid,
        "direction": "sent" if record.is_sent else "received",
        "edge": record.edge,
        "sender": f"{record.sender_id:x}",
        "number": record.number,
        "message": to_plain(message),
    }
    return msgspec.json.encode(fields).decode()


def _add_redact(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--redact", action="store_true", help="replace texts and tokens by placeholders of the same length"
    )
