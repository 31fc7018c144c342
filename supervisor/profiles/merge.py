"""Makes one trace in Chrome's format of the profiles of several processes, on one clock and with arrows between them.

    python -m supervisor.profiles.merge --out trace.json FILE...

https://ui.perfetto.dev and chrome://tracing open the result. A process has a track for its main loop (its turns, their
parts, each frame that it sends or deals with) and one for its sampled stacks; the scheduler has those of torch instead.
"""

import argparse
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from messages.control.processes import FRONTEND, RING
from runtime.profiling import ProcessProfile, Sample

MAIN_LOOP, STACKS = 1, 2
"""Track numbers; torch numbers its own by thread ids, which are larger."""

FILE_TIMEOUT_S = 120.0
POLL_S = 0.05

Event = dict[str, Any]


def merge(profiles: Sequence[ProcessProfile]) -> dict[str, Any]:
    """Returns the trace; its times are microseconds since `base_monotonic_ns` in `otherData`."""
    base_ns = min(profile.began_ns for profile in profiles)
    events: list[Event] = []
    for profile in profiles:
        events += _tracks(profile)
        events += _main_loop(profile, base_ns)
        events += _stacks(profile, base_ns)
        if profile.torch_trace:
            events += _torch_events(profile, base_ns)
    events += _arrows(profiles, base_ns)
    other = {"base_monotonic_ns": base_ns, "processes": [profile.name for profile in profiles]}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": other}


def read_profiles(paths: Iterable[Path], timeout_s: float = FILE_TIMEOUT_S) -> list[ProcessProfile]:
    """Returns the profiles, which their processes may still be writing. Raises `TimeoutError` if one never comes."""
    deadline_s = time.monotonic() + timeout_s
    profiles: list[ProcessProfile] = []
    for path in paths:
        while not path.exists():
            if time.monotonic() >= deadline_s:
                raise TimeoutError(f"{path} has not been written within {timeout_s:g} s")
            time.sleep(POLL_S)
        profiles.append(msgspec.msgpack.decode(path.read_bytes(), type=ProcessProfile))
    return profiles


def write_trace(paths: Sequence[Path], out: Path) -> dict[str, Any]:
    """Merges the profiles in `paths` into the file `out`, and removes them. Returns the trace."""
    profiles = read_profiles(paths)
    trace = merge(profiles)
    out.write_bytes(msgspec.json.encode(trace))
    for path in [*paths, *(Path(profile.torch_trace) for profile in profiles if profile.torch_trace)]:
        path.unlink(missing_ok=True)
    return trace


def _us(at_ns: float, base_ns: int) -> float:
    return (at_ns - base_ns) / 1e3


def _slice(profile: ProcessProfile, track: int, name: str, began_ns: int, ended_ns: int, base_ns: int) -> Event:
    return {
        "ph": "X",
        "cat": "sluice",
        "name": name,
        "pid": profile.pid,
        "tid": track,
        "ts": _us(began_ns, base_ns),
        "dur": (ended_ns - began_ns) / 1e3,
    }


def _tracks(profile: ProcessProfile) -> list[Event]:
    def meta(kind: str, track: int, **fields: Any) -> Event:
        return {"ph": "M", "name": kind, "pid": profile.pid, "tid": track, "args": fields}

    kinds = (FRONTEND, *RING)
    rank = kinds.index(profile.name) if profile.name in kinds else len(kinds)
    events = [
        meta("process_name", 0, name=profile.name),
        meta("process_labels", 0, labels=f"incarnation {profile.incarnation}"),
        meta("process_sort_index", 0, sort_index=rank),
        meta("thread_name", MAIN_LOOP, name="main loop"),
        meta("thread_sort_index", MAIN_LOOP, sort_index=MAIN_LOOP),
    ]
    if profile.samples:
        events.append(meta("thread_name", STACKS, name="stacks"))
        events.append(meta("thread_sort_index", STACKS, sort_index=STACKS))
    return events


def _main_loop(profile: ProcessProfile, base_ns: int) -> list[Event]:
    events = [_slice(profile, MAIN_LOOP, *one, base_ns) for one in profile.slices]
    for receiver, notes in profile.sent.items():
        for name, began_ns, ended_ns, _, _ in notes:
            events.append(_slice(profile, MAIN_LOOP, f"send {name} to {receiver}", began_ns, ended_ns, base_ns))
    events += [
        _slice(profile, MAIN_LOOP, f"take {name}", began_ns, ended_ns, base_ns)
        for name, began_ns, ended_ns, _, _ in profile.received
    ]
    return events


def _stacks(profile: ProcessProfile, base_ns: int) -> list[Event]:
    """Makes of each run of samples with the same frame, in the same callers, one slice."""
    events: list[Event] = []
    stack: list[tuple[str, int]] = []

    def close(depth: int, now_ns: int) -> None:
        while len(stack) > depth:
            frame, began_ns = stack.pop()
            name, *place = frame.split("\0")
            event = _slice(profile, STACKS, name, began_ns, now_ns, base_ns)
            events.append({**event, "args": {"at": ":".join(place[:2])}})

    began_ns = profile.samples_began_ns
    for frames, span_ns in _without_lines(profile.samples):
        depth = 0
        while depth < min(len(frames), len(stack)) and frames[depth] == stack[depth][0]:
            depth += 1
        close(depth, began_ns)
        stack += [(frame, began_ns) for frame in frames[depth:]]
        began_ns += span_ns
    close(0, began_ns)
    # A viewer takes the first of two equal slices for the outer one, and inner ones were closed first.
    events.reverse()
    events.sort(key=lambda event: event["ts"])
    return events


def _without_lines(samples: Iterable[Sample]) -> Iterable[Sample]:
    """A frame is its function, in whatever line; the outermost is the thread and is left out."""
    for frames, span_ns in samples:
        yield [frame.partition("\1")[0] for frame in frames[1:]], span_ns


def _torch_events(profile: ProcessProfile, base_ns: int) -> list[Event]:
    """Returns torch's events on our clock: in its file, `ts` counts from `baseTimeNanoseconds` of the system clock."""
    trace: Event = msgspec.json.decode(Path(profile.torch_trace).read_bytes())
    shift_us = _us(trace.get("baseTimeNanoseconds", 0) - profile.epoch_offset_ns, base_ns)
    timed: list[Event] = [event for event in trace["traceEvents"] if event["ph"] in "Xsft" and _is_number(event)]
    used = {event["pid"] for event in timed}
    events: list[Event] = []
    for event in timed:
        event["ts"] += shift_us
        if event.get("cat") == "cpu_op":
            event.pop("args", None)
        events.append(event)
    for event in trace["traceEvents"]:
        if event["ph"] != "M" or event["pid"] not in used:
            continue
        if event["name"] == "thread_name" and event["pid"] == profile.pid:
            events.append({**event, "args": {"name": f"torch {event['tid']}"}})
        elif event["pid"] != profile.pid and event["name"] == "process_name":
            events.append({**event, "args": {"name": f"{profile.name}: GPU {event['pid']}"}})
        elif event["pid"] != profile.pid:
            events.append(event)
    return events


def _is_number(event: Event) -> bool:
    """Leaves out torch's own summaries, which are on tracks with names in place of numbers."""
    return isinstance(event["pid"], int) and isinstance(event["tid"], int)


def _arrows(profiles: Sequence[ProcessProfile], base_ns: int) -> list[Event]:
    """One arrow for each frame whose two ends are known: sender and number are the same at both.

    They are numbered through: Perfetto takes no flow whose id is not a plain number.
    """
    arrivals = {
        (sender, number): (profile, began_ns)
        for profile in profiles
        for name, began_ns, _, sender, number in profile.received
        if not name.startswith("FramesLost")
    }
    events: list[Event] = []
    for profile in profiles:
        for receiver, notes in profile.sent.items():
            for name, began_ns, _, sender, number in notes:
                arrival = arrivals.get((sender, number))
                if arrival is None:
                    continue
                target, arrived_ns = arrival
                arrow = {"cat": "ring", "name": f"{profile.name}>{receiver}", "id": len(events) // 2 + 1}
                event = {**arrow, "ph": "s", "pid": profile.pid, "tid": MAIN_LOOP, "ts": _us(began_ns, base_ns)}
                events.append({**event, "args": {"message": name}})
                event = {**arrow, "ph": "f", "bp": "e", "pid": target.pid, "tid": MAIN_LOOP}
                events.append({**event, "ts": _us(arrived_ns, base_ns)})
    return events


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m supervisor.profiles.merge", description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("files", type=Path, nargs="+")
    arguments = parser.parse_args()
    try:
        write_trace(arguments.files, arguments.out)
    except (OSError, TimeoutError, msgspec.DecodeError) as error:
        print(f"the profiles could not be merged: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
