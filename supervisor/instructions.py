"""What single processes have been told to do, until they answer."""

from messages.channels import ControlServer
from messages.control import ToLauncher
from messages.orders import Instruction, InstructionDone, ProcessOrder, ProcessResult


class Instructions:
    """Sends instructions and keeps each result until it is taken."""

    def __init__(self, control: ControlServer[ToLauncher]):
        self._control = control
        self._last_id = 0
        self._results: dict[int, ProcessResult | None] = {}
        """`None` while the process has not answered."""

    def send(self, name: str, order: ProcessOrder) -> int:
        """Tells process `name` to carry out `order`; returns the id under which the result will be found."""
        self._last_id += 1
        self._results[self._last_id] = None
        self._control.send(name, Instruction(self._last_id, order))
        return self._last_id

    def note(self, done: InstructionDone) -> None:
        """Keeps a result; one that nobody waits for any more is dropped."""
        if done.instruction_id in self._results:
            self._results[done.instruction_id] = done.result

    def find(self, instruction_id: int) -> ProcessResult | None:
        """Returns the result, `None` while there is none."""
        return self._results.get(instruction_id)

    def forget(self, instruction_id: int) -> None:
        """Waits for the result no longer."""
        self._results.pop(instruction_id, None)
