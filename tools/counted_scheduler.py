"""The real scheduler process, which notes each specialization of a Triton kernel when it is first used.

    python -m tools.counted_scheduler --notes FILE --run-dir DIR

For a server started with `--external scheduler`. A specialization that is first used in service stops all streams while
it is compiled. It counts even if Triton's cache on disk has it: the next machine's has not.
"""

import sys
from contextlib import suppress
from pathlib import Path

from runtime.process import ProcessLink, run_process
from scheduler_proc.process import LoadRunner, import_runner, serve


def main() -> int:
    flag, notes = sys.argv[1:3]
    assert flag == "--notes", "usage: --notes FILE --run-dir DIR"
    del sys.argv[1:3]  # the rest is what every process takes

    def find_loader(link: ProcessLink) -> LoadRunner:
        loader = import_runner(link)
        with suppress(ImportError):  # without Triton none is compiled
            record_compilations(Path(notes))
        return loader

    return run_process("scheduler_proc", lambda link: serve(link, find_loader))


def record_compilations(file: Path) -> None:
    """Appends a line to `file` for each specialization that this process uses for the first time from now on."""
    from triton import knobs

    def record(*, repr: str, **_: object) -> bool:
        with file.open("a", encoding="utf-8") as notes:
            notes.write(" ".join(repr.split()) + "\n")
        return False  # it is compiled

    knobs.runtime.jit_cache_hook = record


if __name__ == "__main__":
    raise SystemExit(main())
