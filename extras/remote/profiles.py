"""The transfer of an engine's profile to the head, one part per request, so that frames are not delayed."""

import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from extras.remote.messages import FilePart, FileQuestion, shift_stamps
from runtime.profiling import ProcessProfile

PART_BYTES = 256 * 1024
MAX_TRACE_BYTES = 256 * 1024**2
"""The limit of torch's trace, which the proxy holds in memory until it is complete."""


def read_part(directory: Path, question: FileQuestion, clock_ahead_ns: int) -> FilePart:
    """Returns the requested part of a file in `directory`. A file that has been read to its end is removed."""
    path = directory / Path(question.name).name
    try:
        with path.open("rb") as file:
            num_bytes = os.fstat(file.fileno()).st_size
            file.seek(question.begin)
            data = file.read(PART_BYTES)
    except OSError:
        return FilePart(question.name, b"", -1, clock_ahead_ns)
    if question.begin + len(data) >= num_bytes:
        path.unlink(missing_ok=True)
    return FilePart(question.name, data, num_bytes, clock_ahead_ns)


class ProfileFetch:
    """Fetches the engine's profile `name`, and torch's trace with it, into `directory`, which is created.

    The file appears when it is complete. Its times are on the head's clock, and its pid is that of this process.
    """

    def __init__(self, name: str, directory: Path, ask: Callable[[FileQuestion], None]):
        directory.mkdir(mode=0o700, exist_ok=True)
        self.path = directory / name
        self._ask = ask
        self._profile: ProcessProfile | None = None
        self._data = bytearray()
        self._missing = name

    def look(self) -> None:
        """Requests the next missing part; call it once a second."""
        if self._missing:
            self._missing, name = "", self._missing
            self._ask(FileQuestion(name, 0))

    def receive(self, part: FilePart) -> str:
        """Returns a remark for the operator, or ""."""
        if part.num_bytes < 0:
            self._missing = part.name
            return ""
        if part.num_bytes > MAX_TRACE_BYTES and self._profile is not None:
            self._write(self._profile)
            return f"torch's trace is left out: it has {part.num_bytes:,} bytes; profile for fewer seconds"
        self._data += part.data
        if len(self._data) < part.num_bytes:
            self._ask(FileQuestion(part.name, len(self._data)))
        elif self._profile is None:
            profile = msgspec.msgpack.decode(self._data, type=ProcessProfile)
            self._profile = _moved(profile, part.clock_ahead_ns)
            self._data.clear()
            if profile.torch_trace:
                self._ask(FileQuestion(Path(profile.torch_trace).name, 0))
            else:
                self._write(self._profile)
        else:
            trace = self.path.with_suffix(".torch.json")
            trace.write_bytes(self._data)
            self._write(msgspec.structs.replace(self._profile, torch_trace=str(trace)))
        return ""

    def _write(self, profile: ProcessProfile) -> None:
        new = self.path.with_suffix(".new")
        new.write_bytes(msgspec.msgpack.encode(profile))
        new.rename(self.path)


def _moved(profile: ProcessProfile, by_ns: int) -> ProcessProfile:
    """Returns the profile on a clock that is ahead by `by_ns`, as one of this process and without torch's trace."""
    return msgspec.structs.replace(
        shift_stamps(profile, by_ns),
        pid=os.getpid(),
        epoch_offset_ns=profile.epoch_offset_ns - by_ns,
        slices=[(name, begin + by_ns, end + by_ns) for name, begin, end in profile.slices],
        sent={
            receiver: [(name, begin + by_ns, end + by_ns, *which) for name, begin, end, *which in notes]
            for receiver, notes in profile.sent.items()
        },
        received=[(name, begin + by_ns, end + by_ns, *which) for name, begin, end, *which in profile.received],
        torch_trace="",
    )
