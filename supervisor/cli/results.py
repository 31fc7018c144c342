"""Results of commands for a running server: what is printed, and the exit code."""

import argparse
import sys

import msgspec

from messages.control.admin import Acknowledged, AdminCommand, Done, Failed, InstructProcesses, ProcessResults, Result
from messages.program import PROGRAM
from supervisor.client.admin_client import AdminClient

DONE, FAILED, USAGE, NO_SERVER = 0, 1, 2, 3
EXIT_CODES = {"unknown": USAGE, "impossible": USAGE}
"""By the reason of a failure; the others are `FAILED`."""

ANSWER_TIMEOUT_S = 15.0


def instruct(options: argparse.Namespace, line: AdminClient, command: InstructProcesses) -> int:
    """Gives an instruction to processes and shows the result of each; returns 1 if one of them failed."""
    result = line.give(command, command.timeout_s + ANSWER_TIMEOUT_S)
    if not isinstance(result, ProcessResults):
        return show_result(options, result)
    if options.json:
        print_json({name: msgspec.structs.asdict(entry) for name, entry in result.results.items()})
    else:
        for name, entry in result.results.items():
            print(f"{name:<12} {entry.text if isinstance(entry, Acknowledged) else entry.message}")
    return FAILED if any(isinstance(entry, Failed) for entry in result.results.values()) else DONE


def give(options: argparse.Namespace, line: AdminClient, command: AdminCommand, timeout_s: float) -> int:
    """Gives a command whose result is one line, and shows its progress."""
    return show_result(options, line.give(command, timeout_s, lambda text: print(text, file=sys.stderr, flush=True)))


def show_result(options: argparse.Namespace, result: Result) -> int:
    """Shows a result that is one line, and returns the exit code."""
    match result:
        case Failed(reason, message):
            complain(options, reason, message)
            return EXIT_CODES.get(reason, FAILED)
        case Done(text):
            if options.json:
                print_json({"done": text})
            else:
                print(text)
            return DONE
        case _:
            complain(options, "failed", f"the server answered with {type(result).__name__}")
            return FAILED


def complain(options: argparse.Namespace, reason: str, message: str) -> None:
    if options.json:
        print_json({"error": {"reason": reason, "message": message}})
    else:
        print(f"{PROGRAM} {options.command}: {message}", file=sys.stderr)


def print_json(value: object) -> None:
    print(msgspec.json.encode(value).decode())
