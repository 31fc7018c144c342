"""A process with scripted behaviour: `fake_child.py NAME BEHAVIOUR --run-dir DIR`."""

import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable

from messages.control.admin import Acknowledged, SetLogLevel
from messages.control.processes import Drain, Leave, ProcessStatus, ProcessTable
from messages.errors import BootError
from runtime.process import PHASE_INTERVAL_S, ProcessLink, run_process


def serve_until_stopped(link: ProcessLink, degraded: str = "") -> None:
    """Serves as a good process does; writes each process table that it receives as one line."""
    if not link.stand_by():
        return
    link.ready(degraded)
    while not link.is_stopping:
        link.beat(lambda: {"requests": 0.0})
        link.wait()
        for command in link.receive_control():
            if isinstance(command, Drain):
                print(f"drain {command.timeout_s:g}")
                link.drained(0)
            elif isinstance(command, Leave):
                print(f"leave {command.timeout_s:g}")
                link.drained(0)
            elif isinstance(command, ProcessTable):
                print("table " + " ".join(map(show, command.processes)))
    print("stopping")


def show(status: ProcessStatus) -> str:
    """Returns `name=state`, with the incarnation unless it is the first, and the end of a hang."""
    end = ".killed" if status.state == "hung" and status.is_killed else ""
    return f"{status.name}={status.state}" + (f".{status.incarnation}" if status.incarnation > 1 else "") + end


def serve_only_the_first(link: ProcessLink) -> None:
    if "-" in link.name:
        raise BootError("one is enough")
    serve_until_stopped(link)


def never_leave(link: ProcessLink) -> None:
    """Serves as the first incarnation, and does not do what it is asked for; its successors are good."""
    if link.incarnation > 1:
        serve_until_stopped(link)
    else:
        ignore_everything(link)


def die_in_standby(link: ProcessLink) -> None:
    """Serves as the first incarnation; the second one dies while it waits for its place, the others serve."""
    if link.is_successor and link.incarnation == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    serve_until_stopped(link)


def die_at_take_over(link: ProcessLink) -> None:
    """Serves as the first incarnation; the second one dies as soon as it has its place."""
    if link.incarnation == 2 and link.stand_by():
        os.kill(os.getpid(), signal.SIGKILL)
    serve_until_stopped(link)


def fail_to_boot_again(link: ProcessLink) -> None:
    """Serves as the first and third incarnation; the second one cannot start."""
    if link.incarnation == 2:
        fail_to_boot(link)
    serve_until_stopped(link)


def lose_a_machine(link: ProcessLink) -> None:
    """Exits when it first starts: it stands for a process on a machine that has left."""
    if link.incarnation == 1:
        raise SystemExit(1)
    serve_until_stopped(link)


def never_boot_again(link: ProcessLink) -> None:
    if link.incarnation > 1:
        fail_to_boot(link)
    serve_until_stopped(link)


def boot_for_ever_again(link: ProcessLink) -> None:
    """Serves as the first incarnation; the second one never comes to serve, the third does."""
    if link.incarnation == 2:
        stay_in_phase(link)
    else:
        serve_until_stopped(link)


def answer_connections(link: ProcessLink) -> None:
    """Answers each connection to the inherited socket with its incarnation."""
    listener = socket.socket(fileno=int(os.environ["SLUICE_LISTEN_FD"]))
    link.ready()
    while not link.is_stopping:
        link.beat(dict[str, float])
        if select.select([listener, *link.descriptors()], [], [], 0.2)[0][:1] == [listener]:
            connection, _ = listener.accept()
            connection.sendall(b"%d" % link.incarnation)
            connection.close()
        for command in link.receive_control():
            if isinstance(command, Drain):
                link.drained(0)


def load_slowly(link: ProcessLink) -> None:
    for fraction in (0.0, 0.6, 1.0):
        link.phase("loading weights", fraction)
        time.sleep(PHASE_INTERVAL_S)  # the next one is due to be reported
    link.phase("warming up")
    serve_until_stopped(link, "no CUDA graphs: no memory")


def lack_memory(link: ProcessLink) -> None:
    """Would start with a shorter context."""
    raise BootError("too little memory for 4096 tokens", fitting_len=512)


def fail_to_boot(link: ProcessLink) -> None:
    link.phase("loading weights")
    raise BootError("there are no weights in /nowhere")


def crash_at_boot(link: ProcessLink) -> None:
    link.phase("loading weights")
    raise RuntimeError("a bug in the loader")


def stay_in_phase(link: ProcessLink) -> None:
    link.phase("loading weights")
    while not link.is_stopping:
        link.wait()


def die_when_ready(link: ProcessLink) -> None:
    print("last words")
    link.ready()
    os.kill(os.getpid(), signal.SIGKILL)


def ignore_everything(link: ProcessLink) -> None:
    link.ready()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        link.beat(dict[str, float])
        time.sleep(0.5)


def never_finish_draining(link: ProcessLink) -> None:
    link.ready()
    while not link.is_stopping:
        link.beat(dict[str, float])
        link.wait()
        for command in link.receive_control():
            if isinstance(command, Drain):
                print(f"drain {command.timeout_s:g}")
    print("stopping")


def write_lines(link: ProcessLink) -> None:
    """Writes 1200 lines `line ROUND.NUMBER`, and 100 more after each instruction."""
    num_rounds = 0

    def write(command: SetLogLevel | None = None) -> Acknowledged:
        nonlocal num_rounds
        num_rounds += 1
        print("\n".join(f"line {num_rounds}.{number}" for number in range(1200 if num_rounds == 1 else 100)))
        return Acknowledged()

    link.register(SetLogLevel, write)
    link.ready()
    write()
    while not link.is_stopping:
        link.beat(dict[str, float])
        link.wait()
        link.receive_control()


def refuse_commands(link: ProcessLink) -> None:
    """Serves, but refuses every instruction."""
    link.register(SetLogLevel, refuse_command)
    link.ready()
    while not link.is_stopping:
        link.beat(dict[str, float])
        link.wait()
        link.receive_control()


def refuse_command(command: SetLogLevel) -> Acknowledged:
    raise BootError("never")


BEHAVIOURS: dict[str, Callable[[ProcessLink], None]] = {
    behaviour.__name__: behaviour
    for behaviour in (
        serve_until_stopped,
        load_slowly,
        fail_to_boot,
        lack_memory,
        crash_at_boot,
        stay_in_phase,
        die_when_ready,
        ignore_everything,
        never_finish_draining,
        fail_to_boot_again,
        lose_a_machine,
        never_boot_again,
        boot_for_ever_again,
        answer_connections,
        write_lines,
        never_leave,
        serve_only_the_first,
        die_in_standby,
        die_at_take_over,
        refuse_commands,
    )
}


def main() -> int:
    name, behaviour = sys.argv[1], sys.argv[2]
    del sys.argv[1:3]
    if behaviour == "import_for_ever":
        signal.pause()
    return run_process(name, BEHAVIOURS[behaviour])


if __name__ == "__main__":
    raise SystemExit(main())
