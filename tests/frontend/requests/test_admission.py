from unittest.mock import Mock

import httpx
import pytest

from frontend.errors import UnavailableError
from frontend.links.processes import ProcessView
from frontend.requests import admission
from frontend.requests.admission import MAX_RETRY_S, Admission, estimate_tokens
from frontend.service import Service
from messages.columns import pack_int32
from messages.config.server import SchedulingConfig
from messages.ring.requests import ChatPrompt
from tests.frontend.frontend_run import TIMEOUT_S, FrontendRun, InThread, final, make_config, step, table


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


def test_a_full_server_admits_a_few_requests_of_other_clients():
    view = ProcessView()
    view.update(table())
    door = Admission(SchedulingConfig(max_num_seqs=4, max_queued_requests=60), view)
    door.check(64, num_own=7)
    door.check(71, num_own=0)
    for num_open, num_own in ((64, 8), (64, 64), (72, 0)):
        with pytest.raises(UnavailableError, match=f"full: {num_open} requests"):
            door.check(num_open, num_own)


def test_a_client_that_fills_the_server_keeps_no_other_out():
    config = make_config(scheduling=SchedulingConfig(max_num_seqs=8, max_queued_requests=8))
    with FrontendRun(config) as run:
        calls = [run.call({"n": 8}, path="/v1/completions") for _ in range(2)]
        messages = [run.take_request() for _ in range(16)]
        assert run.client.post("/generate", json={"prompt": "hi"}).status_code == 503
        transport = httpx.HTTPTransport(local_address="127.0.0.2")
        with httpx.Client(base_url=run.url, transport=transport, timeout=TIMEOUT_S) as other:
            asked = InThread(lambda: other.post("/generate", json={"prompt": "hi", "stream": False}))
            message = run.take_request()
            assert message.client == "127.0.0.2"
            run.send(final(message, "ok", (1,)))
            assert asked.result().status_code == 200
        for message in messages:
            run.send(final(message, "ok", (1,)))
        for call in calls:
            call.json()
            call.leave()


@pytest.mark.parametrize(("num_workers", "share"), [(1, 14), (2, 7), (4, 3), (100, 1)])
def test_several_frontends_share_the_limit(num_workers: int, share: int):
    view = ProcessView()
    view.update(table())
    door = Admission(SchedulingConfig(max_num_seqs=4, max_queued_requests=10), view, num_workers)
    assert door.limit == share
    door.check(share - 1)
    with pytest.raises(
        UnavailableError, match=f"{share} requests are open" + (" in this" if num_workers > 1 else r" \(")
    ):
        door.check(share)


def test_several_frontends_share_the_tokens_that_may_wait():
    view = ProcessView()
    view.update(table())
    door = Admission(SchedulingConfig(max_queued_tokens=100), view, 4)
    door.check_tokens(10, 15, num_open=1)
    with pytest.raises(UnavailableError, match="the limit is 25"):
        door.check_tokens(10, 16, num_open=1)


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


def test_with_a_hold_requests_enter_while_a_process_is_replaced():
    view = ProcessView(has_started=True)
    view.update(table(scheduler="restarting"))
    door = Admission(SchedulingConfig(max_num_seqs=1, max_queued_requests=1), view, restart_hold_s=1.0)
    door.check(1)
    with pytest.raises(UnavailableError, match="full: 2 requests"):
        door.check(2)
    with pytest.raises(UnavailableError, match="scheduler is restarting"):
        door.check_open()
    door.is_draining = True
    with pytest.raises(UnavailableError, match="draining"):
        door.check(0)


def test_retry_after_follows_the_measured_rate(clock: Clock):
    door = make()
    assert door.retry_after_s(14) == 1
    for _ in range(6):
        clock.now_s += 2
        door.record_end()
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
        door.record_end()
    assert door.retry_after_s(5) == 1


def test_prompts_that_wait_are_limited_by_their_tokens():
    view = ProcessView()
    view.update(table())
    door = Admission(SchedulingConfig(max_queued_tokens=100), view)
    assert door.limits_tokens
    door.check_tokens(60, 40, 5)
    with pytest.raises(UnavailableError, match=r"60 prompt tokens wait.*--max-queued-tokens") as error:
        door.check_tokens(60, 41, 5)
    assert error.value.info.code == "queue_full"
    assert error.value.retry_after_s >= 1
    door.check_tokens(0, 5000, 0)  # a prompt that is longer than the limit could else never be served
    assert door.num_refused == {"queue_full": 1}
    assert not make().limits_tokens


def test_refusals_are_counted_by_their_code():
    door = make()
    door.is_draining = True
    for _ in range(2):
        with pytest.raises(UnavailableError):
            door.check(0)
    assert door.num_refused == {"draining": 2}


def test_tokens_are_estimated_from_a_text_and_known_of_ids():
    assert estimate_tokens(None, pack_int32(range(7)), None) == 7
    assert estimate_tokens("a" * 400, b"", None) == 101
    assert estimate_tokens("語" * 100, b"", None) == 76
    assert estimate_tokens("\ud800" * 4, b"", None) == 2
    assert estimate_tokens(None, b"", ChatPrompt(b"[" + b" " * 39)) == 11


def test_a_queue_full_of_tokens_is_a_503():
    config = make_config(scheduling=SchedulingConfig(max_queued_tokens=10))
    with FrontendRun(config) as run, run.call({"prompt": [1] * 8}) as first:
        message = run.take_request()
        refused = run.client.post("/generate", json={"prompt": [1, 2, 3]})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "queue_full")
        assert int(refused.headers["retry-after"]) >= 1
        run.send(step([(message, 1, "a")]))
        first.next_event()
        with run.call({"prompt": [1, 2, 3]}) as second:
            other = run.take_request()
            run.send(step(finals=(final(message), final(other))))
            second.events()


def test_no_request_enters_after_all_open_ones_were_ended():
    """A request that entered between the stop and the end of the process would never end."""
    service = Mock(admission=make())
    service.admission.check(0)
    Service.shut_down(service)
    service.registry.fail_all.assert_called_once()
    with pytest.raises(UnavailableError):
        service.admission.check(0)
