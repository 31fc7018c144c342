"""`launch.py replay DIR`: repeats the recorded requests and compares their results.

Exit codes: 0 the same, 1 a difference or the end of the server, 2 nothing to replay.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from extras.replay.culprit import describe_culprits, find_culprits
from extras.replay.differences import describe, find_first
from extras.replay.drive import ReplayDriver, output_channels
from extras.replay.frames import DIFFERENT, SAME
from extras.replay.recording import NO_IMAGES, Attempt, Recording
from extras.replay.stand_in import ServerEndedError, StandIn
from messages.control.processes import RING
from messages.engine_names import SCHEDULER, engine_name
from messages.errors import SluiceError
from messages.frame_files import reporting_damage
from messages.schema import SCHEMA_VERSION
from supervisor.cli.results import complain
from supervisor.manifest import Manifest, identify_model

REDACTED = (
    "the recording is redacted: with placeholders for texts and tokens outputs cannot be compared, and a crash that "
    "depends on them does not come again"
)

EPILOG = """
DIR is what --record was given, or a snapshot or a run directory (or a copy) with the directory black-box in it, of
which the requests are replayed whose beginning it holds. Flags after -- are the server's, in place of those recorded:

    launch.py replay DIR --only scheduler -- --speculative ngram

A request that was aborted, or had not ended, is compared up to there. Where the server dies, halves of what it had are
replayed until the request is found that kills it. On a CPU the tokens of a request do not depend on
what else is in its batch; on a GPU they may.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument("directory", type=Path, metavar="DIR")
    parser.add_argument(
        "--only", choices=RING, default="", help="replay only this process, from the frames it received"
    )
    parser.add_argument(
        "--speed",
        type=float,
        default=0.0,
        metavar="X",
        help="multiple of the recorded speed (default: as fast as possible)",
    )
    parser.add_argument("--uid", type=int, nargs="+", default=(), metavar="N", help="replay only these requests")
    parser.set_defaults(execute=replay)


def replay(options: argparse.Namespace) -> int:
    """Replays, prints the result, and returns the exit code. Raises `SluiceError` if there is nothing to compare."""
    with reporting_damage(options.directory):
        recording = Recording(options.directory, options.only, options.uid)
    manifest = recording.manifest
    for text in find_notes(manifest, options.server_flags):
        print(f"note: {text}", file=sys.stderr)
    if recording.num_unreadable:
        print(f"note: {recording.num_unreadable} frames cannot be decoded and are left out", file=sys.stderr)
    if recording.num_without_images:
        print(f"note: {recording.num_without_images} attempts are left out: {NO_IMAGES}", file=sys.stderr)
    flags = options.server_flags
    num_recorded = recording.config.run.data_parallel
    requested = _value_of("--data-parallel", flags)
    num_engines = (requested.isdecimal() and int(requested)) or num_recorded
    if num_engines < num_recorded:
        print(f"note: what {num_recorded} engines served goes to {num_engines}", file=sys.stderr)
    recording.place(num_engines)
    scope = _scope_of(recording)
    print(f"replaying {scope}, recorded {manifest.begun} by sluice {manifest.version}", file=sys.stderr, flush=True)
    try:
        ended = _play(options, recording)
        # Requests that ended normally count even if the server then died: a wrong token may be the cause.
        whole = [one for one in recording.attempts.values() if not ended or one.replayed.reason]
        is_same = manifest.is_redacted or _describe_difference(whole, manifest, flags)
        if ended:
            _report_death(options, recording, ended)
    except SluiceError as error:
        complain(options, "failed", str(error))
        return DIFFERENT
    if ended or not is_same:
        return DIFFERENT
    if recording.trouble:
        print(f"note: this does not come again: {recording.trouble}", file=sys.stderr)
    if manifest.is_redacted:
        raise SluiceError(REDACTED)
    print(f"the same: {scope}, {sum(len(one.outcome.tokens) for one in whole)} tokens")
    return SAME


def _play(options: argparse.Namespace, recording: Recording) -> str:
    """Replays on a new server; returns how that ended early, empty if it did not.

    Raises `SluiceError` if it stops responding.
    """
    real = (options.only,) if options.only else RING
    poisons = recording.poisons if SCHEDULER in real else []
    flags = [*("--enable-fault-injection",) * bool(poisons), *options.server_flags]
    try:
        with StandIn(recording.config, flags, real, output_channels(recording, options.only)) as server:
            if poisons:
                server.poison(poisons)
            server.put_images(recording.images)
            ReplayDriver(recording, options.only, options.speed).run(server)
    except ServerEndedError as error:
        return str(error)
    return ""


def _report_death(options: argparse.Namespace, recording: Recording, ended: str) -> None:
    """Prints how the server ended, which request caused it, and that request's recorded results."""
    running = recording.open_now()
    print(f"{ended}\nrequests that ran: {', '.join(f'{one.key[0]}' for one in running) or 'none'}", flush=True)
    if recording.trouble:
        print(f"in the recorded run: {recording.trouble}")
    if running:
        print(f"looking for the one of {len(running)} that kills it", file=sys.stderr, flush=True)
        print(describe_culprits(find_culprits(recording, lambda some: _play(options, some))))


def _scope_of(recording: Recording) -> str:
    by_engine = Counter(attempt.engine for attempt in recording.attempts.values())
    parts = [f"{engine_name(engine)} {num}" for engine, num in sorted(by_engine.items())]
    where = f" ({', '.join(parts)})" if len(parts) > 1 else ""
    return f"{len({uid for uid, _ in recording.attempts})} requests, {len(recording.attempts)} attempts{where}"


def _describe_difference(attempts: Iterable[Attempt], manifest: Manifest, flags: Sequence[str]) -> bool:
    """Prints the first difference; returns whether there is none."""
    found = find_first(attempts)
    if found is None:
        return True
    print(describe(found))
    if (_value_of("--device", flags) or manifest.config.model.device) != "cpu":
        print(
            "(on a GPU without --deterministic the sums of a row may round otherwise in another batch, and a later "
            "token may then differ without a fault)"
        )
    return False


def find_notes(manifest: Manifest, flags: Sequence[str]) -> list[str]:
    """Returns the differences between this run's conditions and those of the recorded one."""
    notes: list[str] = []
    if manifest.schema_version != SCHEMA_VERSION:
        notes.append(
            f"the recording has version {manifest.schema_version:x} of the messages, this program {SCHEMA_VERSION:x}: "
            "fields that were added since have their defaults"
        )
    if not _value_of("--model", flags):
        now = identify_model(Path(manifest.config.facts.model_dir))
        changed = [file.name for file in manifest.model_files if file not in now]
        if changed:
            notes.append(f"the model has changed since: {', '.join(changed)}")
    return notes


def _value_of(flag: str, flags: Sequence[str]) -> str:
    """Returns the value of `flag`, given as the next word or after `=`; empty if it is not given."""
    for index, word in enumerate(flags):
        name, has_value, value = word.partition("=")
        if name == flag:
            return value if has_value else "".join(flags[index + 1 : index + 2])
    return ""
