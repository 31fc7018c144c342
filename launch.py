"""The command that people type: `python launch.py [--model DIR] [flags]` runs the server and returns its exit code.

`python launch.py COMMAND` controls a running server: `launch.py ps --help`; some commands need none:
`launch.py whatif --help`.
"""

import sys

from supervisor.early_scheduler import EarlyScheduler


def main() -> int:
    arguments = sys.argv[1:]
    if arguments and not arguments[0].startswith("-"):
        # Imported here and not above: a server that starts needs none of the commands.
        from supervisor.cli.programs import PROGRAMS, run_program

        if arguments[0] in PROGRAMS:
            run_program(arguments)
        from supervisor.cli.operate import operate

        return operate(arguments)
    scheduler = None if {"-h", "--help"} & set(arguments) else EarlyScheduler()
    # Imported here and not above: the scheduler's process imports torch meanwhile.
    from supervisor.run import launch

    return launch(arguments, scheduler)


if __name__ == "__main__":
    raise SystemExit(main())
