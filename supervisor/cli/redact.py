"""`launch.py snapshot --redact`: a snapshot without the contents of requests."""

import contextlib
from pathlib import Path

import msgspec

from messages.errors import SluiceError
from messages.frame_files import SUFFIX
from runtime.black_box.redaction import redact_file
from runtime.extras import installed_extras, load_object
from runtime.run_dir import RunDir
from supervisor.manifest import read_manifest, write_manifest


def redact_snapshot(directory: Path) -> None:
    """Redacts the frames of a snapshot and removes its logs, which may contain prompts.

    Its manifest records that, because a replay of it cannot give the same outputs.
    """
    black_box = RunDir(directory).black_box
    for extra in installed_extras():
        if extra.redact:
            load_object(extra.redact)(black_box)
    with contextlib.suppress(SluiceError):  # no frames are kept
        write_manifest(black_box, msgspec.structs.replace(read_manifest(black_box), is_redacted=True))
    for path in directory.rglob(f"*{SUFFIX}"):
        redacted = path.with_suffix(".redacted")
        redact_file(path, redacted)
        redacted.replace(path)
    for path in directory.glob("processes/*/log"):
        path.unlink()
