import pytest

from frontend import admission
from frontend.admission import MAX_RETRY_S, Admission
from frontend.errors import UnavailableError
from frontend.processes import ProcessView
from messages.config import SchedulingConfig
from tests.frontend.frontend_run import table


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(admission, "time", clock)
    return clock


def make(processes: ProcessView | None = None) -> Admission:
    view = processes or ProcessView()
    if processes is None:
        view.update(table())
    return Admission(SchedulingConfig(max_num_seqs=4, max_queued_requests=10), view)


def test_the_limit_is_rows_and_queue_together():
    make().check(13)
    with pytest.raises(UnavailableError, match="full: 14 requests") as error:
        make().check(14)
    assert error.value.info.code == "queue_full"


def test_nothing_enters_while_draining():
    door = make()
    door.is_draining = True
    with pytest.raises(UnavailableError) as error:
        door.check(0)
    assert error.value.info.code == "draining"


def test_nothing_enters_while_a_process_is_not_ready():
    view = ProcessView()
    view.update(table(scheduler="hung"))
    with pytest.raises(UnavailableError, match="scheduler is hung"):
        make(view).check(0)


def test_retry_after_follows_the_measured_rate(clock: Clock):
    door = make()
    assert door.retry_after_s(14) == 1
    for _ in range(6):
        clock.now_s += 2
        door.note_end()
    # one ending each 2 s, and 10 requests wait for a row
    assert door.retry_after_s(14) == 20
    clock.now_s += 10
    assert door.retry_after_s(14) == 40
    clock.now_s += 1000
    assert door.retry_after_s(14) == MAX_RETRY_S


def test_retry_after_is_at_least_one(clock: Clock):
    door = make()
    for _ in range(50):
        clock.now_s += 0.001
        door.note_end()
    assert door.retry_after_s(5) == 1
