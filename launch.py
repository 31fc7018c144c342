"""The command that people type: `python launch.py [--model DIR] [flags]` runs the server and returns its exit code.

`python launch.py COMMAND` controls a running server: `launch.py ps --help`; some commands need none:
`launch.py whatif --help`. Any Python will do: one without the libraries hands over to that of `.venv`.
"""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

from supervisor.early_scheduler import EarlyScheduler

ROOT = Path(__file__).resolve().parent
LIBRARIES = ("msgspec", "zmq", "torch")
"""Some of the libraries that the program needs."""

SERVE = "serve"
"""`launch.py serve [MODEL] [flags]` starts a server, as the command without this word."""


def main() -> int:
    missing = [name for name in LIBRARIES if find_spec(name) is None]
    if missing:
        return use_own_python(missing)
    arguments = sys.argv[1:]
    if arguments[:1] == [SERVE]:
        arguments = arguments[1:]
        if arguments and not arguments[0].startswith("-"):
            arguments = ["--model", *arguments]
    elif arguments and not arguments[0].startswith("-"):
        # Imported here and not above: a server that starts needs none of the commands.
        from supervisor.programs import find_programs, run_program

        program = find_programs().get(arguments[0])
        if program is not None:
            run_program(program, arguments[1:])
        from supervisor.cli.operate import operate

        return operate(arguments)
    scheduler = None if {"-h", "--help", "--help-all", "--version"} & set(arguments) else EarlyScheduler()
    # Imported here and not above: the scheduler's process imports torch meanwhile.
    from supervisor.run import launch

    return launch(arguments, scheduler)


def use_own_python(missing: list[str]) -> int:
    """Replaces this process by the Python of `.venv`. If there is none or this is it, prints a message and returns an
    exit code."""
    venv = ROOT / ".venv"
    python = venv / "bin" / "python"
    if (venv / "pyvenv.cfg").is_file() and python.is_file() and not venv.samefile(sys.prefix):
        os.execv(python, [str(python), *sys.argv])
    print(
        f"launch.py: {sys.executable} does not have the libraries that Sluice needs ({', '.join(missing)}).\n"
        f"Run `make serve` in {ROOT}: it installs them into .venv and starts a server.",
        file=sys.stderr,
    )
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
