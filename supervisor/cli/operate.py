"""`launch.py ps`, `logs`, `drain`, …: the operator's commands against a running server.

Exit codes: 0 done, 1 failed, 2 used wrongly (an unknown process or flag, several servers to choose from), 3 no server.
"""

import argparse
import difflib
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from messages.control import admin
from messages.errors import SluiceError
from messages.program import PROGRAM, START
from runtime.extras import installed_extras, load_object
from runtime.stage_report import stage_lines
from runtime.terminal import without_controls
from supervisor.admin.tasks import CommandFailedError
from supervisor.cli import results
from supervisor.cli.redact import redact_snapshot
from supervisor.cli.show import memory_text, process_table, scaling_text
from supervisor.client.admin_client import AdminClient
from supervisor.client.running import NoServerError, RunningServer, WhichServerError, choose_server, find_model_server
from supervisor.flags import describe_unknown
from supervisor.profiles import record
from supervisor.programs import find_programs

FOLLOW_WAIT_S = 20.0
MARGIN_S = 30.0
"""The time that a command may take beyond the time that it gives to requests."""

Execute = Callable[[argparse.Namespace, RunningServer, AdminClient], int]


def operate(arguments: Sequence[str]) -> int:
    """Runs one command and returns its exit code, after its result on standard output or one message on error."""
    own, flags = _split(arguments)
    parser, commands = make_parser(own[:1])
    if own[0] not in commands:
        print(f"{PROGRAM}: {describe_no_command(own[0], [*commands, *find_programs()])}", file=sys.stderr)
        return results.USAGE
    options, unknown = parser.parse_known_args(own, argparse.Namespace(server_flags=flags))
    if unknown:
        print(f"{PROGRAM} {own[0]}: {describe_unknown(unknown[0], commands[own[0]])}", file=sys.stderr)
        return results.USAGE
    try:
        if not options.needs_server:
            return options.execute(options)
        server = choose_server(options.run_dir, options.port)
        if options.model is not None:
            server = find_model_server(server, options.model)
        with AdminClient(server.run_dir) as line:
            execute: Execute = options.execute
            return execute(options, server, line)
    except (NoServerError, WhichServerError) as error:
        results.complain(options, "no_server" if isinstance(error, NoServerError) else "which_server", str(error))
        return results.NO_SERVER if isinstance(error, NoServerError) else results.USAGE
    except SluiceError as error:
        results.complain(options, "failed", str(error))
        return results.FAILED if options.needs_server else results.USAGE
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        sys.stdout = None  # the reader has left: there is nothing to flush any more
        return results.DONE


def describe_no_command(word: str, known: Sequence[str]) -> str:
    """Returns the error for a first word that is not one of the `known` commands."""
    if "/" in word or Path(word).is_dir():
        return f"{word} is not a command; to serve a model, use --model: {START} --model {word}"
    nearest = difflib.get_close_matches(word, known, n=1, cutoff=0.7)
    hint = f"; did you mean {nearest[0]}?" if nearest else ""
    return (
        f"there is no command {word!r}{hint}\ncommands are {', '.join(known)}; each has --help\n"
        f"to start a server: {START} --model DIR"
    )


def make_parser(
    requested: Collection[str] = (),
) -> tuple[argparse.ArgumentParser, Mapping[str, argparse.ArgumentParser]]:
    """Returns the parser of all commands, and the parser of each. An extra's command has options if it is `wanted`."""
    parser = argparse.ArgumentParser(prog=PROGRAM, description="Commands for a running server.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    ps = _add(commands, "ps", "list the processes", list_processes)
    for name, (text, function) in (item for extra in installed_extras() for item in extra.listings.items()):
        ps.add_argument(f"--{name}", dest="listing", action="store_const", const=function, help=text)
    ps.set_defaults(listing=None)
    logs = _add(commands, "logs", "show the last log lines of a process", show_logs)
    logs.add_argument("process", metavar="NAME")
    logs.add_argument("-n", "--lines", type=_count, default=50, metavar="N", help="number of lines (default: 50)")
    logs.add_argument("-f", "--follow", action="store_true", help="follow the log")
    drain = _add(commands, "drain", "reject new requests, finish running ones, then shut down", drain_server)
    drain.add_argument(
        "--timeout-s", type=_seconds, metavar="X", help="maximum wait in seconds (default: --drain-timeout-s)"
    )
    restart = _add(commands, "restart", "replace a process without failing any request", restart_process)
    restart.add_argument("process", metavar="NAME")
    restart.add_argument(
        "--timeout-s",
        type=_seconds,
        metavar="X",
        help="seconds that a scheduler's rows may run before they move to another one (default: 0), or a "
        "frontend's connections before they are closed (default: --drain-timeout-s)",
    )
    restart.add_argument("--all", action="store_true", help="replace all processes of this kind, one at a time")
    scale = _add(commands, "scale", "change the number of tokenizers or schedulers", scale_process)
    scale.add_argument("process", metavar="NAME")
    scale.add_argument("num", type=_count, metavar="N", help="target number of processes")
    snapshot = _add(commands, "snapshot", "write a diagnostic bundle to a directory", take_snapshot)
    snapshot.add_argument("--out", type=Path, metavar="DIR", help="directory to create (default: in --snapshot-dir)")
    snapshot.add_argument("--redact", action="store_true", help="omit logs, and texts and tokens of requests")
    level = _add(commands, "log-level", "set the log level of processes", set_log_level)
    level.add_argument("level", choices=("debug", "info", "warning", "error"))
    level.add_argument("processes", nargs="*", metavar="NAME", help="the processes (default: all)")
    text = "profile processes into one file for a trace viewer"
    record.add_options(_add(commands, "profile", text, profile_processes))
    for extra in installed_extras():
        for name, command in extra.commands.items():
            own = (
                _add(commands, name, command.text) if command.needs_server else _add_plain(commands, name, command.text)
            )
            if name in requested:
                load_object(command.options)(own)
    return parser, commands.choices


def list_processes(options: argparse.Namespace, server: RunningServer, line: AdminClient) -> int:
    if options.listing is not None:
        return load_object(options.listing)(options, server)
    result = line.give(admin.ListProcesses(), results.ANSWER_TIMEOUT_S)
    if not isinstance(result, admin.ProcessList):
        return results.show_result(options, result)
    if options.json:
        where = {"port": server.config.http.port, "models": server.config.facts.served_names}
        results.print_json({**where, "run_dir": str(server.run_dir.path), **msgspec.structs.asdict(result)})
    else:
        place = server.run_dir.path if server.config.http.is_private else f"port {server.config.http.port}"
        print(f"{', '.join(server.config.facts.served_names)} on {place}")
        if result.scaling is not None:
            print(scaling_text(result.scaling))
        print(process_table(result.processes))
        print("\n".join([memory_text(result), *stage_lines({one.name: one for one in result.processes})]))
    return results.DONE


def show_logs(options: argparse.Namespace, server: RunningServer, line: AdminClient) -> int:
    command = admin.ReadLog(options.process, options.lines)
    while True:
        result = line.give(command, results.ANSWER_TIMEOUT_S + command.wait_s)
        if not isinstance(result, admin.LogLines):
            return results.show_result(options, result)
        num_lost = result.next_number - len(result.lines) - command.after
        if command.after >= 0 and num_lost > 0:
            print(f"({num_lost} lines came too fast to be kept)", file=sys.stderr)
        for text in result.lines:
            print(
                msgspec.json.encode({"process": options.process, "line": text}).decode()
                if options.json
                else without_controls(text)
            )
        if not options.follow:
            return results.DONE
        sys.stdout.flush()
        command = admin.ReadLog(options.process, after=result.next_number, wait_s=FOLLOW_WAIT_S)


def drain_server(options: argparse.Namespace, server: RunningServer, line: AdminClient) -> int:
    timeout_s = server.config.run.drain_timeout_s if options.timeout_s is None else options.timeout_s
    return results.show_result(options, line.give(admin.DrainServer(options.timeout_s), timeout_s + MARGIN_S))


def restart_process(options: argparse.Namespace, server: RunningServer, line: AdminClient) -> int:
    drain_s = server.config.run.drain_timeout_s if options.timeout_s is None else options.timeout_s
    timeout_s = drain_s + 2 * server.config.run.boot_timeout_s + MARGIN_S
    return results.give(options, line, admin.RestartProcess(options.process, options.timeout_s, options.all), timeout_s)


def scale_process(options: argparse.Namespace, server: RunningServer, line: AdminClient) -> int:
    timeout_s = server.config.run.boot_timeout_s + MARGIN_S
    return results.give(options, line, admin.ScaleProcess(options.process, options.num), timeout_s)


def take_snapshot(options: argparse.Namespace, server: RunningServer, line: AdminClient) -> int:
    directory = str(options.out.absolute()) if options.out else ""
    result = line.give(admin.TakeSnapshot(directory), MARGIN_S)
    if options.redact and isinstance(result, admin.Done):
        redact_snapshot(Path(result.text))
    return results.show_result(options, result)


def set_log_level(options: argparse.Namespace, server: RunningServer, line: AdminClient) -> int:
    return results.instruct(
        options, line, admin.InstructProcesses(tuple(options.processes), admin.SetLogLevel(options.level))
    )


def profile_processes(options: argparse.Namespace, server: RunningServer, line: AdminClient) -> int:
    try:
        text = record.take_profile(line, options.processes, options.seconds, options.out)
    except CommandFailedError as error:
        return results.show_result(options, error.failed)
    return results.show_result(options, admin.Done(text))


def _split(arguments: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Returns the words of the command, and the flags of the server that it starts."""
    command = next((one for extra in installed_extras() if (one := extra.commands.get(arguments[0]))), None)
    if command is not None and command.num_words:
        return arguments[: command.num_words], arguments[command.num_words :]
    if command is None or "--" not in arguments:
        return arguments, ()
    end = arguments.index("--")
    return arguments[:end], arguments[end + 1 :]


def _add(commands: Any, name: str, text: str, execute: Execute | None = None) -> argparse.ArgumentParser:
    """Adds a command for a running server."""
    parser = _add_plain(commands, name, text)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--run-dir", type=Path, metavar="DIR", help="the server's run directory")
    parser.add_argument("--port", type=int, metavar="N", help="the server's port (default: the only running server)")
    parser.add_argument("--model", metavar="NAME", help="model to operate on, if the server has several (--models)")
    parser.set_defaults(execute=execute, needs_server=True)
    return parser


def _add_plain(commands: Any, name: str, text: str) -> argparse.ArgumentParser:
    """Adds a command that needs no running server."""
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter  # for the epilogs of extras
    parser.set_defaults(needs_server=False, json=False)
    return parser


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is less than 0")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a valid time")
    return value
