"""The process that holds the directory runs batches to their end, each line once, behind the requests of clients."""

import asyncio
import errno
import json
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from starlette.requests import Request

from extras.batches import gate as gate_module
from extras.batches import line_run, runner
from extras.batches.config import BatchConfig
from extras.batches.gate import Gate
from extras.batches.line_run import LineCaller
from extras.batches.offline import OfflineBatch, check_offline
from extras.batches.records import BatchRecord
from extras.batches.results import LineFailure, Results
from extras.batches.runner import BatchRunner
from extras.batches.store import BatchStore
from frontend.errors import UnavailableError
from frontend.http.endpoint import Endpoint
from frontend.http.in_process import InProcessCall
from frontend.http.responses import JsonReply
from frontend.links.processes import ProcessView
from messages.config.server import SchedulingConfig
from messages.control.processes import ProcessStatus, ProcessTable
from messages.errors import BootError, bad_request
from tests.frontend.frontend_run import make_config

URL = "/v1/completions"
NUM_ROWS = 128
TIMEOUT_S = 60.0


class Endpoints:
    """An endpoint that answers with the prompt once `may_answer` is set, and everything else that a runner needs."""

    def __init__(self, path: Path):
        self.asked: Counter[str] = Counter()
        self.bodies: list[dict[str, Any]] = []
        self.may_answer = asyncio.Event()
        self.num_full = 0
        """Requests that are refused because the server is full."""
        self.num_over = 0
        self.store = BatchStore(path, 10**9)
        self.registry: list[int] = []

    async def answer(self, request: Request) -> JsonReply:
        body = json.loads(await request.body())
        if self.num_full:
            self.num_full -= 1
            raise UnavailableError("full", "queue_full")
        self.bodies.append(body)
        await self.may_answer.wait()
        self.asked[body["prompt"]] += 1
        if body["prompt"] == "bad":
            raise bad_request("no")
        return JsonReply({"text": body["prompt"]})

    def record_over(self, trace: object) -> None:
        self.num_over += 1

    def gate(self, max_batch_seqs: int | None = None, **batch: Any) -> Gate:
        scheduling = SchedulingConfig(max_num_seqs=NUM_ROWS, max_batch_seqs=max_batch_seqs)
        config = BatchConfig(**batch).put_into(make_config(scheduling=scheduling))
        self.processes = ProcessView()
        return Gate(config, self.registry, self.processes, 1)  # type: ignore[arg-type]

    def caller(self, gate: Gate | None = None) -> LineCaller:
        endpoint = Endpoint(URL, self.answer, "", method="POST")
        return LineCaller({URL: endpoint}, self.gate() if gate is None else gate, self.record_over, 10**6)

    def runner(self, request_timeout_s: float | None = None) -> BatchRunner:
        return BatchRunner(self.store, self.caller(), request_timeout_s)

    def add(self, *prompts: str, window_s: float = 3600, **line: Any) -> str:
        with closing(self.store.begin_upload()) as upload:
            upload.write(lines(*prompts, **line).encode())
            file_id = self.store.add_file(upload, "in.jsonl", "batch", 3600).id
        now_s = int(time.time())
        fields = {"endpoint": URL, "input_file_id": file_id, "completion_window": "1h", "created_at": now_s}
        return self.store.add_batch(BatchRecord(id="", expires_at=int(now_s + window_s), **fields)).id

    def results(self, batch_id: str) -> dict[str, Any]:
        """The response of each line, or the code of its error; every line must be there once."""
        record = self.store.find_batch(batch_id)
        found: dict[str, Any] = {}
        for file_id in (record.output_file_id, record.error_file_id):
            for line in self.store.content(file_id).read_text().splitlines() if file_id else ():
                result = json.loads(line)
                assert result["custom_id"] not in found
                found[result["custom_id"]] = (
                    result["response"]["status_code"] if result["response"] else result["error"]["code"]
                )
        return found


def lines(*prompts: str, **fields: Any) -> str:
    made = (
        {"custom_id": f"id-{prompt}", "method": "POST", "url": URL, "body": {"prompt": prompt}} for prompt in prompts
    )
    return "".join(json.dumps({**line, **fields}) + "\n" for line in made)


def play(tmp_path: Path, script: Callable[[Endpoints], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(TIMEOUT_S):
            await script(Endpoints(tmp_path / "batches"))

    asyncio.run(run())


async def wait_for(condition: Callable[[], object], *ticking: Any) -> None:
    while not condition():
        for each in ticking:
            each.tick()
        await asyncio.sleep(0.005)


async def wait_status(server: Endpoints, batch_id: str, status: str, *ticking: Any) -> BatchRecord:
    await wait_for(lambda: server.store.find_batch(batch_id).status == status, *ticking)
    return server.store.find_batch(batch_id)


def test_a_batch_is_answered(tmp_path: Path):
    async def script(server: Endpoints) -> None:
        server.may_answer.set()
        batches = server.runner(request_timeout_s=5.0)
        batch_id = server.add("one", "bad", "two")
        record = await wait_status(server, batch_id, "completed", batches)
        assert server.results(batch_id) == {"id-one": 200, "id-two": 200, "id-bad": 400}
        assert msgspec.structs.astuple(record.request_counts) == (3, 2, 1)
        assert None not in (record.in_progress_at, record.finalizing_at, record.completed_at)
        assert server.num_over == 3
        assert all(body["priority"] == 100 and body["timeout_s"] > 3000 for body in server.bodies)
        await wait_for(lambda: not any(batches.gauges().values()))

    play(tmp_path, script)


def test_a_bad_file_fails_and_nothing_is_asked(tmp_path: Path):
    async def script(server: Endpoints) -> None:
        batch_id = server.add("one", "two", method="GET")
        record = await wait_status(server, batch_id, "failed", server.runner())
        assert record.errors is not None
        assert [(error.line, error.code) for error in record.errors.data] == [
            (1, "invalid_method"),
            (2, "invalid_method"),
        ]
        assert not server.bodies

    play(tmp_path, script)


def test_another_process_continues_and_requests_no_line_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(line_run, "SYNC_S", 0.01)
    prompts = [f"{number}" for number in range(100)]

    async def script(server: Endpoints) -> None:
        batch_id = server.add(*prompts)
        server.may_answer.set()
        for num in (20, 50, 70):
            batches = server.runner()
            await wait_for(lambda num=num: server.asked.total() >= num, batches)
            batches.stop()
            await wait_for(lambda batches=batches: not batches.gauges()["batches"])
        await wait_status(server, batch_id, "completed", server.runner())
        assert server.results(batch_id) == {f"id-{prompt}": 200 for prompt in prompts}
        assert server.asked == Counter(prompts)

    play(tmp_path, script)


def test_one_of_several_frontends_runs_them(tmp_path: Path):
    async def script(server: Endpoints) -> None:
        server.may_answer.set()
        first, second = server.runner(), server.runner()
        first.tick()
        batch_id = server.add("one", "two")
        await wait_status(server, batch_id, "completed", second, first)
        assert server.asked == Counter(["one", "two"])

    play(tmp_path, script)


def test_what_is_cancelled_keeps_what_it_has(tmp_path: Path):
    async def script(server: Endpoints) -> None:
        batches = server.runner()
        server.may_answer.set()
        batch_id = server.add("one")
        other = server.add(*(f"{number}" for number in range(40)))
        await wait_status(server, batch_id, "completed", batches)
        server.may_answer.clear()
        open_id = server.add("never", "neither")
        await wait_for(lambda: len(server.bodies) == 43, batches)
        server.store.cancel(server.store.find_batch(open_id))
        record = await wait_status(server, open_id, "cancelled", batches)
        assert None not in (record.cancelling_at, record.cancelled_at)
        assert record.request_counts.failed == 2
        assert server.results(open_id) == {"id-never": "batch_cancelled", "id-neither": "batch_cancelled"}
        assert server.store.find_batch(other).status == "completed"

    play(tmp_path, script)


def test_what_is_not_answered_in_time_expires(tmp_path: Path):
    async def script(server: Endpoints) -> None:
        batches = server.runner()
        for window_s in (2, 8, 30):  # a busy machine may ask too late
            batch_id = server.add("one", "two", window_s=window_s)
            record = await wait_status(server, batch_id, "expired", batches)
            assert set(server.results(batch_id).values()) == {"batch_expired"}
            assert (record.expired_at or 0) >= record.expires_at
            if server.bodies:
                break
        assert server.bodies

    play(tmp_path, script)


def test_a_full_server_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(line_run, "RETRY_S", 0.01)

    async def script(server: Endpoints) -> None:
        server.may_answer.set()
        server.num_full = 7
        batch_id = server.add("one", "two")
        await wait_status(server, batch_id, "completed", server.runner())
        assert server.results(batch_id) == {"id-one": 200, "id-two": 200}

    play(tmp_path, script)


def test_results_wait_for_room_on_a_full_disk_and_no_line_is_asked_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(line_run, "RETRY_S", 0.01)
    add, is_full = Results.add, True

    def add_if_room(results: Results, custom_id: str, reply: Any) -> None:
        if is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        add(results, custom_id, reply)

    async def script(server: Endpoints) -> None:
        nonlocal is_full
        server.may_answer.set()
        monkeypatch.setattr(Results, "add", add_if_room)
        num_lines = 2 * NUM_ROWS
        batch_id = server.add(*(f"{number}" for number in range(num_lines)))
        batches = server.runner()
        await wait_for(lambda: batches.gauges()["batch_results_unwritten"] == NUM_ROWS // 2, batches)
        assert server.asked.total() == NUM_ROWS // 2, "lines are begun though their results cannot be written"
        assert "No space left on device" in caplog.text
        is_full = False
        await wait_status(server, batch_id, "completed", batches)
        assert server.results(batch_id) == {f"id-{number}": 200 for number in range(num_lines)}
        assert set(server.asked.values()) == {1}
        assert not batches.gauges()["batch_results_unwritten"]

    play(tmp_path, script)


def test_other_errors_of_the_disk_are_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(runner, "RETRY_S", 0.01)
    add, num_errors = Results.add, 2

    def fail(results: Results, custom_id: str, reply: Any) -> None:
        nonlocal num_errors
        if num_errors:
            num_errors -= 1
            raise OSError(errno.EIO, "Input/output error")
        add(results, custom_id, reply)

    async def script(server: Endpoints) -> None:
        server.may_answer.set()
        monkeypatch.setattr(Results, "add", fail)
        batch_id = server.add("one", "two", "three")
        await wait_status(server, batch_id, "completed", server.runner())
        assert server.results(batch_id) == {"id-one": 200, "id-two": 200, "id-three": 200}

    play(tmp_path, script)


def test_the_event_loop_reads_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """What takes longer with more lines or more batches is done in threads, also the look for batches at a start."""
    loop_thread = threading.get_ident()

    def elsewhere(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            assert threading.get_ident() != loop_thread, function
            return function(*arguments)

        return call

    async def script(server: Endpoints) -> None:
        monkeypatch.setattr(runner, "check_file", elsewhere(runner.check_file))
        monkeypatch.setattr(BatchStore, "find_open", elsewhere(BatchStore.find_open))
        monkeypatch.setattr(line_run, "read_line", elsewhere(line_run.read_line))
        server.may_answer.set()
        batch_id = server.add(*(f"{number}" for number in range(9)))
        monkeypatch.setattr(line_run, "LINES_AT_ONCE", 2)
        batches = server.runner()
        await wait_status(server, batch_id, "completed", batches)
        assert server.results(batch_id) == {f"id-{number}": 200 for number in range(9)}
        expired_id = server.add("late", window_s=0)
        await wait_status(server, expired_id, "expired", batches)

    play(tmp_path, script)


def test_results_that_cannot_be_read_end_a_batch(tmp_path: Path):
    async def script(server: Endpoints) -> None:
        batch_id = server.add("one")
        server.store.results(server.store.find_batch(batch_id))[0].write_text("something else\n")
        record = await wait_status(server, batch_id, "failed", server.runner())
        assert record.errors is not None
        assert record.errors.data[0].code == "results_unreadable"

    play(tmp_path, script)


def test_few_rows_are_taken_while_others_have_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gate_module, "QUIET_S", 0.0)

    async def script(server: Endpoints) -> None:
        gate = server.gate()
        caller = server.caller(gate)
        batches = BatchRunner(server.store, caller, None)
        server.add(*(f"{number}" for number in range(100)))
        server.registry += [1]
        await wait_for(lambda: len(server.bodies) == NUM_ROWS // 64, batches)
        batches.tick()
        await asyncio.sleep(0.05)
        assert len(server.bodies) == NUM_ROWS // 64
        server.registry.clear()
        await wait_for(lambda: len(server.bodies) == NUM_ROWS // 2, batches)
        assert gate.num_free == 0
        other = ProcessStatus("frontend-2", "ready", pid=1, uid_block=2, gauges={"requests": 1})
        server.processes.update(ProcessTable((other,)))
        assert gate.num_free == NUM_ROWS // 64 - NUM_ROWS // 2
        batches.stop()
        await wait_for(lambda: not len(gate))

    play(tmp_path, script)


def test_a_moment_without_requests_begins_no_more_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    now_s = 1000.0
    monkeypatch.setattr(gate_module.time, "monotonic", lambda: now_s)

    async def script(server: Endpoints) -> None:
        nonlocal now_s
        gate = server.gate()
        assert gate.num_free == NUM_ROWS // 2
        server.registry += [1]
        assert gate.num_free == NUM_ROWS // 64
        server.registry.clear()
        now_s += 0.9 * gate_module.QUIET_S
        assert gate.num_free == NUM_ROWS // 64
        now_s += 0.2 * gate_module.QUIET_S
        assert gate.num_free == NUM_ROWS // 2

    asyncio.run(script(Endpoints(tmp_path / "batches")))


def test_the_operator_reports_how_many_rows(tmp_path: Path):
    async def script(server: Endpoints) -> None:
        assert server.gate(max_batch_seqs=3).num_free == 3
        assert server.gate(batch_run=("in", "out")).num_free == NUM_ROWS
        server.registry += [1]
        assert server.gate(max_batch_seqs=1).num_free == 1
        assert server.gate(max_batch_seqs=30).num_free == 30

    play(tmp_path, script)


def test_a_call_that_is_cancelled_ends(tmp_path: Path):
    async def script(server: Endpoints) -> None:
        call: InProcessCall = await server.caller().begin(
            msgspec.convert({"custom_id": "a", "method": "POST", "url": URL, "body": {}}, line_run.BatchLine), None
        )
        task = asyncio.create_task(call.run())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait((task,))
        assert server.num_over == 1

    play(tmp_path, script)


def test_a_file_without_a_directory(tmp_path: Path):
    source, output = tmp_path / "in", tmp_path / "out"
    source.write_text(lines("one", "bad", "two"))
    ended: list[bool] = []

    async def end() -> None:
        ended.append(True)

    async def script(server: Endpoints) -> None:
        server.may_answer.set()
        results = Results(output, output)
        results.add("id-one", LineFailure("batch_expired", "late"))
        results.close()
        check_offline((str(source), str(output)), 10**6, is_first=True)
        batch = OfflineBatch((str(source), str(output)), server.caller(), lambda: True, end)
        await wait_for(lambda: ended, batch)
        batch.stop()
        assert server.asked == Counter(["bad", "two"])
        assert sorted(json.loads(line)["custom_id"] for line in output.read_text().splitlines()) == [
            "id-bad",
            "id-one",
            "id-two",
        ]

    play(tmp_path, script)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (lines("one", method="PUT"), "line 1: method must be POST"),
        (None, "No such file"),
        ("{\n" * 30, "and at least 90"),
    ],
)
def test_a_file_that_cannot_be_run_is_notified_before_the_server_is_ready(tmp_path: Path, text: str | None, error: str):
    source = tmp_path / "in"
    if text is not None:
        source.write_text(text * 4)
    with pytest.raises(BootError, match=error):
        check_offline((str(source), str(tmp_path / "out")), 10**6, is_first=True)
    check_offline((str(source), str(tmp_path / "out")), 10**6, is_first=False)  # which has been checked
