"""`launch.py replay DIR`: the recorded requests once more, and whether the same comes of them.

Exit codes: 0 the same, 1 a difference or the end of the server, 2 nothing to replay.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from messages.control import RING
from messages.errors import SluiceError
from messages.schema import SCHEMA_VERSION
from supervisor.manifest import Manifest, identify_model
from supervisor.replay.differences import describe, find_first
from supervisor.replay.drive import Drive, output_channels
from supervisor.replay.recording import Recording
from supervisor.replay.stand_in import ServerEndedError, StandIn

SAME, DIFFERENT, UNUSABLE = 0, 1, 2

EPILOG = """
DIR is what --record was given, or a run directory or a copy of it with the directory black-box in it, of which the
requests are replayed whose beginning it holds. Flags after -- are the server's, in place of the recorded ones:

    launch.py replay DIR --only scheduler -- --speculative ngram

A request that was aborted, or had not ended, is compared up to there. In float32 the tokens of a request do not depend
on what else is in its batch; in 16 bits they may.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    parser.add_argument("directory", type=Path, metavar="DIR")
    parser.add_argument("--only", choices=RING, default="", help="replay this process alone, from what it received")
    parser.add_argument(
        "--speed", type=float, default=0.0, metavar="X", help="times the recorded speed (default: as fast as it goes)"
    )
    parser.add_argument("--uid", type=int, nargs="+", default=(), metavar="N", help="replay these requests alone")
    parser.set_defaults(execute=replay)


def replay(options: argparse.Namespace) -> int:
    """Replays, says what came of it, and returns the exit code."""
    try:
        recording = Recording(options.directory, options.only, options.uid)
    except SluiceError as error:
        return _complain(str(error), UNUSABLE)
    manifest = recording.manifest
    for note in find_notes(manifest, options.server_flags):
        print(f"note: {note}", file=sys.stderr)
    if recording.num_unreadable:
        print(f"note: {recording.num_unreadable} frames cannot be decoded and are left out", file=sys.stderr)
    attempts = list(recording.attempts.values())
    num_requests = len({uid for uid, _ in recording.attempts})
    scope = f"{num_requests} requests, {len(attempts)} attempts"
    print(f"replaying {scope}, recorded {manifest.begun} by sluice {manifest.version}", file=sys.stderr, flush=True)
    real = (options.only,) if options.only else RING
    ended = ""
    try:
        with StandIn(recording.config, options.server_flags, real, output_channels(recording, options.only)) as server:
            Drive(recording, options.only, options.speed).run(server)
    except ServerEndedError as error:
        ended = str(error)
    except SluiceError as error:
        return _complain(str(error), DIFFERENT)
    # What has ended by itself counts also where the server then died: a wrong token may be why.
    found = find_first(one for one in attempts if not ended or one.replayed.reason)
    if found is not None:
        print(describe(found))
        _tell_of_rounding(manifest, options.server_flags)
    if ended:
        open_now = [f"{uid}" for (uid, _), one in recording.attempts.items() if one.is_sent and not one.replayed.reason]
        print(f"{ended}\nrequests that ran: {', '.join(open_now) or 'none'}")
    if found is None and not ended:
        print(f"the same: {scope}, {sum(len(one.outcome.tokens) for one in attempts)} tokens")
        return SAME
    return DIFFERENT


def find_notes(manifest: Manifest, flags: Sequence[str]) -> list[str]:
    """Returns what is not as it was in the recorded run."""
    notes: list[str] = []
    if manifest.schema_version != SCHEMA_VERSION:
        notes.append(
            f"the recording has version {manifest.schema_version:x} of the messages, this program {SCHEMA_VERSION:x}: "
            "fields that were added since have their defaults"
        )
    if "--model" not in flags:
        now = identify_model(Path(manifest.config.facts.model_dir))
        changed = [file.name for file in manifest.model_files if file not in now]
        if changed:
            notes.append(f"the model has changed since: {', '.join(changed)}")
    return notes


def _tell_of_rounding(manifest: Manifest, flags: Sequence[str]) -> None:
    dtype = flags[flags.index("--dtype") + 1] if "--dtype" in flags[:-1] else manifest.config.model.dtype
    if dtype != "float32":
        print(
            f"(--dtype {dtype}: in 16 bits the sums of a row may round otherwise in another batch, and a later token "
            "may then differ without a fault)"
        )


def _complain(message: str, code: int) -> int:
    print(f"launch.py replay: {message}", file=sys.stderr)
    return code
