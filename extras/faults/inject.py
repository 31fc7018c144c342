"""`launch.py inject`: faults on purpose, in a server that was started with `--enable-fault-injection`."""

import argparse
import os
import signal
import time

from extras.faults import messages as wire
from extras.faults.config import FaultsConfig
from messages.columns import pack_int32
from messages.control.admin import InstructProcesses, ListProcesses, ProcessList
from supervisor.cli.results import ANSWER_TIMEOUT_S, DONE, FAILED, USAGE, complain, instruct
from supervisor.client.admin_client import AdminClient
from supervisor.client.running import RunningServer

SIGNAL_FAULTS = ("kill", "stop")
EDGE_FAULTS = ("drop", "duplicate", "corrupt", "delay")
FAULTS = (*SIGNAL_FAULTS, "stop-reading", *EDGE_FAULTS, "poison", "starve", "damage-pages", "clear")
ALL_SCHEDULERS = ("scheduler*",)

EPILOG = """
kill, stop TARGET       SIGKILL or SIGSTOP for a process; with --seconds a stopped one continues after that time
stop-reading TARGET     a process receives nothing from others, and runs otherwise
drop, duplicate, corrupt, delay TARGET
                        of an edge, as 'scheduler>detokenizer' or scheduler:detokenizer: the next --frames frames, or
                        each one with --probability; delay needs --seconds
poison                  the step that computes --uid, or --token-ids side by side, kills the scheduler (--fail: raises)
starve                  the scheduler lets nothing out of its queue, or leaves --uid out of its steps
damage-pages            the scheduler overwrites K and V of --pages full pages and dies of it; its successor must notice
clear                   forgets all that
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(execute=inject_fault)
    parser.epilog = EPILOG
    parser.add_argument("fault", choices=FAULTS)
    parser.add_argument("target", nargs="?", default="", help="process, or edge FROM:TO")
    parser.add_argument("--frames", type=int, default=1, metavar="N", help="number of frames to affect (default: 1)")
    parser.add_argument("--probability", type=float, default=0.0, metavar="P", help="probability per frame")
    parser.add_argument("--seconds", type=float, default=0.0, metavar="X", help="duration of a stop or delay")
    parser.add_argument("--uid", type=int, default=0, metavar="N", help="request to poison or starve")
    parser.add_argument("--token-ids", default="", metavar="N,N,…", help="token IDs that make a prompt poisonous")
    parser.add_argument("--pages", type=int, default=1, metavar="N", help="number of pages to damage (default: 1)")
    parser.add_argument(
        "--fail", action="store_true", help="the poisoned step raises an exception instead of killing the process"
    )


def inject_fault(options: argparse.Namespace, server: RunningServer, line: AdminClient) -> int:
    """Carries out the command; returns the exit code."""
    if not FaultsConfig.of(server.config).enable_fault_injection:
        complain(options, "impossible", "the server was started without --enable-fault-injection")
        return FAILED
    try:
        command = read_command(options)
    except (ValueError, OverflowError) as error:
        complain(options, "usage", str(error))
        return USAGE
    code = instruct(options, line, command)
    if code == DONE:
        resume_later(options, line)
    return code


def read_command(options: argparse.Namespace) -> InstructProcesses:
    """Returns the instruction for the processes. Raises `ValueError` with the error in the command line."""
    fault: str = options.fault
    if fault == "clear":
        return InstructProcesses((), wire.wrap(wire.ClearFaults()))
    if fault == "poison":
        return InstructProcesses(ALL_SCHEDULERS, wire.wrap(_poison(options)))
    if fault == "starve":
        return InstructProcesses(ALL_SCHEDULERS, wire.wrap(wire.Starve(options.uid)))
    if fault == "damage-pages":
        return InstructProcesses(ALL_SCHEDULERS, wire.wrap(wire.DamagePages(options.pages)))
    if fault in SIGNAL_FAULTS or fault == "stop-reading":
        if not options.target:
            raise ValueError(f"{fault} needs the name of a process")
        command = wire.StopReading() if fault == "stop-reading" else wire.SignalSelf(options.fault)
        return InstructProcesses((options.target,), wire.wrap(command))
    sender, arrow, receiver = options.target.replace(">", ":").partition(":")
    if not (sender and arrow and receiver):
        raise ValueError(f"{fault} needs an edge as FROM:TO, for example scheduler:detokenizer")
    if not 0 <= options.probability <= 1 or options.frames < 1:
        raise ValueError("--probability must be in [0, 1] and --frames at least 1")
    if (fault == "delay") != (options.seconds > 0):
        raise ValueError("delay, and of these faults only delay, needs --seconds")
    command = wire.EdgeFault(receiver, options.fault, options.frames, options.probability, options.seconds)
    return InstructProcesses((sender,), wire.wrap(command))


def resume_later(options: argparse.Namespace, line: AdminClient) -> None:
    """Continues a stopped process after `--seconds`; without them it stays as it is, and is taken for hung."""
    if options.fault != "stop" or not options.seconds:
        return
    result = line.give(ListProcesses(), ANSWER_TIMEOUT_S)
    if isinstance(result, ProcessList):
        time.sleep(options.seconds)
        for process in result.processes:
            if process.name == options.target and process.pid:
                os.kill(process.pid, signal.SIGCONT)


def _poison(options: argparse.Namespace) -> wire.Fault:
    token_ids: list[int] = [int(text) for text in options.token_ids.split(",") if text]
    if bool(options.uid) == bool(token_ids):
        raise ValueError("poison needs --uid or --token-ids")
    return wire.Poison("fail" if options.fail else "kill", options.uid, pack_int32(token_ids))
