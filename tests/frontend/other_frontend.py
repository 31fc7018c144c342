"""A second frontend of the server of a `FrontendRun`, played by the test."""

from typing import Any, TypeVar

from messages.channels import Receiver
from messages.control.processes import ProcessState, ProcessStatus, ProcessTable
from messages.ring.peers import PeerAnswer, PeerAsk, PeerQuestion, PeerReply, ToFrontend
from messages.ring.uids import UIDS_PER_BLOCK, frontend_socket
from tests.frontend.frontend_run import TIMEOUT_S, FrontendRun, table

R = TypeVar("R")

OWN_BLOCK, BLOCK = 1, 2


def front(block: int, state: ProcessState = "ready") -> ProcessStatus:
    """The status of `frontend`, `frontend-2` …, each in its first incarnation."""
    name = "frontend" if block == 1 else f"frontend-{block}"
    return ProcessStatus(name, state, pid=block, incarnation=1, uid_block=block)


class OtherFrontend:
    """`frontend-2`, which the process table of `run` contains."""

    def __init__(self, run: FrontendRun):
        self._run = run
        self._receiver: Receiver[Any] = run.launcher.open_receiver(frontend_socket(BLOCK), ToFrontend)
        self._num_asked = 0
        self.show("ready")

    def show(self, state: ProcessState) -> None:
        """Sends the process of `run` the status of this one."""
        ring = [status for status in table().processes if status.name != "frontend"]
        self._run.show(ProcessTable((front(OWN_BLOCK), front(BLOCK, state), *ring)))

    def ask(self, question: PeerQuestion, kind: type[R]) -> R:
        """Returns the reply of the process of `run`, which must be of type `kind`."""
        self._num_asked += 1
        uid = BLOCK * UIDS_PER_BLOCK + self._num_asked
        self._run.send(PeerAsk(uid, question))
        answer = self._take(PeerAnswer)
        assert (answer.uid, answer.block) == (uid, OWN_BLOCK)
        assert isinstance(answer.reply, kind)
        return answer.reply

    def take_question(self) -> PeerAsk:
        return self._take(PeerAsk)

    def answer(self, ask: PeerAsk, reply: PeerReply) -> None:
        self._run.send(PeerAnswer(ask.uid, BLOCK, reply))

    def _take(self, kind: type[R]) -> R:
        message = self._run.launcher.take_one(self._receiver, TIMEOUT_S)
        assert isinstance(message, kind)
        return message
