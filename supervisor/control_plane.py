"""The launcher's end of the control channels: processes report here and receive their instructions."""

from pathlib import Path

from messages.channels import ControlServer, Waiter
from messages.control.admin import Ask, Instruction, InstructionDone, ProcessCommand, ProcessResult
from messages.control.processes import Drain, Drained, Leave, Refusal, ToLauncher, Welcome


class ControlPlane(ControlServer[ToLauncher]):
    """A control server that keeps the reports that will be requested."""

    def __init__(self, path: Path):
        super().__init__(path, ToLauncher)
        self._num_unfinished: dict[str, int] = {}
        """The number of requests left in each process that has drained."""
        self._asks: list[tuple[bytes, Ask]] = []
        self._last_instruction_id = 0
        self._results: dict[int, ProcessResult | None] = {}
        """The result of each instruction; `None` while the process has not answered."""

    def wait(self, timeout_s: float) -> None:
        """Blocks until a report arrives, or the time is over."""
        waiter = Waiter()
        waiter.add_channel(self)
        waiter.wait(timeout_s)

    def welcome(self, name: str, pid: int, welcome: Welcome) -> None:
        """Lets `name` mean the process `pid` from now on, and notifies it."""
        self.admit(name, pid)
        self.send(name, welcome)

    def refuse(self, name: str, pid: int, reason: str) -> None:
        self.send_to_pid(name, pid, Refusal(reason))

    def drain(self, name: str, command: Drain | Leave) -> None:
        """Makes a process finish what it has; `has_drained` turns true when it has answered."""
        self._num_unfinished.pop(name, None)
        self.send(name, command)

    def has_drained(self, name: str) -> bool:
        return name in self._num_unfinished

    def num_unfinished(self, name: str) -> int:
        """Returns how many requests were left in a process that has drained; 0 for others."""
        return self._num_unfinished.get(name, 0)

    def instruct(self, name: str, command: ProcessCommand) -> int:
        """Instructs process `name` to carry out `command`; returns the id under which the result will be found."""
        self._last_instruction_id += 1
        self._results[self._last_instruction_id] = None
        self.send(name, Instruction(self._last_instruction_id, command))
        return self._last_instruction_id

    def find_result(self, instruction_id: int) -> ProcessResult | None:
        """Returns what became of an instruction, `None` while the process has not answered."""
        return self._results.get(instruction_id)

    def forget_instruction(self, instruction_id: int) -> None:
        """Stops waiting for the result."""
        self._results.pop(instruction_id, None)

    def record(self, name: str, report: Drained | InstructionDone | Ask) -> None:
        """Keeps a report until it is requested; a result without a waiting caller is dropped."""
        match report:
            case Drained(num_unfinished):
                self._num_unfinished[name] = num_unfinished
            case InstructionDone(instruction_id, result):
                if instruction_id in self._results:
                    self._results[instruction_id] = result
            case Ask():
                self._asks.append((self.identity_of(name), report))

    def pop_asks(self) -> list[tuple[bytes, Ask]]:
        """Returns and forgets the processes' requests to the launcher, each with the connection to answer."""
        asks, self._asks = self._asks, []
        return asks
