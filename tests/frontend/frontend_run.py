"""A frontend process with a launcher and a ring played by the test."""

import http.client
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import httpx
import msgspec
import psutil

from messages.columns import pack_counts, pack_int32, pack_int64
from messages.config.server import Config, HttpConfig, ModelFacts, RunConfig, SchedulingConfig
from messages.control.processes import FRONTEND, ProcessState, ProcessStatus, ProcessTable, kind_of
from messages.ring.peers import ToFrontend
from messages.ring.replies import (
    PositionLogprobs,
    PrefilledRow,
    StepReplies,
    TokenLogprob,
    Usage,
    UserReply,
)
from messages.ring.requests import AbortMsg, DropBefore, Stamps, TokenizeMsg, ToTokenizer
from messages.ring.uids import frontend_socket
from tests.fake_launcher import FakeLauncher

M = TypeVar("M")

NAMES = ("frontend", "tokenizer", "scheduler", "detokenizer")
TIMEOUT_S = 90.0
TABLE = "table"
JSON_HEADERS = {"Content-Type": "application/json"}

FACTS = ModelFacts(
    model_dir="/models/m", tokenizer_dir="/models/m", served_names=("org/m", "m"), vocab_size=1000, max_model_len=512
)


def make_config(
    http: HttpConfig | None = None, scheduling: SchedulingConfig | None = None, run: RunConfig | None = None
) -> Config:
    return Config(
        http=http or HttpConfig(port=0),
        scheduling=scheduling or SchedulingConfig(),
        run=run or RunConfig(),
        facts=FACTS,
    )


def table(age_s: float = 0.0, **states: ProcessState) -> ProcessTable:
    """Every process "ready", except for `states`; the last beats are `age_s` old."""
    beat_ns = time.monotonic_ns() - int(age_s * 1e9)
    return ProcessTable(
        tuple(ProcessStatus(name, states.get(name, "ready"), pid=1, incarnation=1, beat_ns=beat_ns) for name in NAMES)
    )


def table_after(incarnations: dict[str, int], **states: ProcessState) -> ProcessTable:
    """As `table`, after restarts: `incarnations` are those of the processes that are not in their first."""
    processes = [
        msgspec.structs.replace(status, incarnation=number, num_restarts=number - 1)
        if (number := incarnations.get(status.name, 1)) > 1
        else status
        for status in table(0.0, **states).processes
    ]
    return ProcessTable(tuple(processes))


def with_engine(processes: ProcessTable, state: ProcessState = "ready", **fields: Any) -> ProcessTable:
    """Returns the table with a second scheduler."""
    second = ProcessStatus("scheduler-2", state, pid=2, incarnation=1, beat_ns=time.monotonic_ns())
    return ProcessTable((*processes.processes, msgspec.structs.replace(second, **fields)))


def position_logprobs(
    token_id: int, text: str, logprob: float | None, text_offset: int, *top: tuple[int, str, float]
) -> Any:
    """A token with its logprob and, as (token id, text, logprob), its alternatives."""
    token = TokenLogprob(token_id, text, text.encode(), logprob)
    return PositionLogprobs(
        token, tuple(TokenLogprob(*entry[:2], entry[1].encode(), entry[2]) for entry in top), text_offset
    )


def step(
    rows: Iterable[tuple[TokenizeMsg, int | tuple[int, ...], str]] = (),
    finals: tuple[UserReply, ...] = (),
    logprobs: dict[int, PositionLogprobs] | None = None,
    prefilled: tuple[PrefilledRow, ...] = (),
) -> StepReplies:
    """One step of (request, token id or ids, text) rows, `logprobs` by the index of the token."""
    rows = list(rows)
    runs = [(tokens,) if isinstance(tokens, int) else tokens for _, tokens, _ in rows]
    logprobs = logprobs or {}
    return StepReplies(
        step_id=1,
        uids=pack_int64(message.uid for message, _, _ in rows),
        attempts=pack_int32(message.attempt for message, _, _ in rows),
        token_ids=pack_int32(token_id for run in runs for token_id in run),
        texts=tuple(text for _, _, text in rows),
        finals=finals,
        logprob_entries=pack_int32(logprobs),
        logprobs=tuple(logprobs.values()),
        prefilled=prefilled,
        num_tokens=pack_counts([len(run) for run in runs]),
    )


def final(message: TokenizeMsg, text: str = "", token_ids: tuple[int, ...] = (), **fields: Any) -> UserReply:
    """The end of `message`, by length unless `fields` say else."""
    fields = {"finish_reason": "length", "usage": Usage(3, 1, 2), "stamps": message.stamps, **fields}
    return UserReply(message.uid, message.attempt, incremental_output=text, token_ids=pack_int32(token_ids), **fields)


def wait_until(condition: Callable[[], bool], timeout_s: float = TIMEOUT_S) -> None:
    """Waits until `condition` holds; fails at the deadline."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.01)


class Call:
    """One HTTP request that has been sent and whose response has not been read, so that the ring can be played."""

    def __init__(self, address: tuple[str, int], body: Any, headers: dict[str, str], path: str, method: str = "POST"):
        self.connection = http.client.HTTPConnection(*address, timeout=TIMEOUT_S)
        self.connection.request(method, path, json.dumps(body), {**JSON_HEADERS, **headers})
        self._response: http.client.HTTPResponse | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    @property
    def response(self) -> http.client.HTTPResponse:
        """The response; waits for its head."""
        if self._response is None:
            self._response = self.connection.getresponse()
        return self._response

    def next_event(self) -> str:
        """Returns the next event (or comment) of the stream without its empty line; "" at the end."""
        lines: list[str] = []
        while True:
            line = self.response.readline().decode()
            if line in ("\n", ""):
                return "\n".join(lines)
            lines.append(line.removesuffix("\n"))

    def next_data(self) -> str:
        """Returns the data of the next event, skipping keep-alive comments."""
        while (event := self.next_event()).startswith(":"):
            pass
        return event.removeprefix("data: ")

    def events(self) -> list[dict[str, Any]]:
        """Returns the data of all events that are left; the last one must be `[DONE]`."""
        found: list[str] = []
        while event := self.next_event():
            if not event.startswith(":"):
                assert event.startswith("data: ")
                found.append(event.removeprefix("data: "))
        assert found[-1] == "[DONE]"
        return [json.loads(event) for event in found[:-1]]

    def json(self) -> dict[str, Any]:
        return json.loads(self.response.read())

    def leave(self) -> None:
        if self._response is not None:
            self._response.close()
        self.connection.close()


class InThread(Generic[M]):
    """A call of `ask` in a thread, so that the test can play the processes that it waits for."""

    def __init__(self, ask: Callable[[], M]):
        self._result: M | None = None
        self._thread = threading.Thread(target=self._run, args=(ask,), daemon=True)
        self._thread.start()

    def _run(self, ask: Callable[[], M]) -> None:
        self._result = ask()

    def result(self) -> M:
        self._thread.join(TIMEOUT_S)
        assert self._result is not None, "no result came"
        return self._result


class Asked(InThread[httpx.Response]):
    """A request whose response is waited for in a thread."""

    def response(self) -> httpx.Response:
        return self.result()


class FrontendRun:
    """The process, ready unless `is_ready` is false, and both ends of the ring."""

    def __init__(
        self,
        config: Config | None = None,
        *,
        is_ready: bool = True,
        incarnation: int = 1,
        headers: dict[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
    ):
        self.config = config or make_config()
        self.launcher = FakeLauncher(self.config)
        self._headers = headers
        self._tls = tls
        self.launcher.incarnation = incarnation
        self._is_ready = is_ready
        self._num_shown = 0

    def __enter__(self) -> Self:
        self.launcher.__enter__()
        try:
            self._choices: list[TokenizeMsg] = []
            self._requests = self.launcher.open_receiver("tokenizer", ToTokenizer)
            self.process = psutil.Process(self.launcher.start_ready("frontend").pid)
            self.replies = self.launcher.open_sender(frontend_socket(self.launcher.incarnation))
            self.url = self.launcher.run_dir.address_file.read_text(encoding="utf-8")
            verify = True if self._tls is None else self._tls
            self.client = httpx.Client(base_url=self.url, timeout=TIMEOUT_S, headers=self._headers, verify=verify)
            if self._is_ready:
                self.show(table())
        except BaseException as error:
            self.launcher.__exit__(type(error), error, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.client.close()
        self.launcher.__exit__(kind, error, trace)

    @property
    def address(self) -> tuple[str, int]:
        url = httpx.URL(self.url)
        assert url.port is not None
        return url.host, url.port

    def show(self, processes: ProcessTable) -> None:
        """Sends a table and waits until `/health` shows it: a process of the ring has the table's number as a gauge."""
        self._num_shown += 1
        numbered = next(status for status in reversed(processes.processes) if kind_of(status.name) != FRONTEND)
        statuses = [
            msgspec.structs.replace(status, gauges={**status.gauges, TABLE: self._num_shown})
            if status is numbered
            else status
            for status in processes.processes
        ]
        self.launcher.send("frontend", msgspec.structs.replace(processes, processes=tuple(statuses)))

        def is_shown() -> bool:
            shown = self.health()["processes"].get(numbered.name)
            return shown is not None and shown["gauges"].get(TABLE) == self._num_shown

        wait_until(is_shown)

    def health(self) -> dict[str, Any]:
        """Retries if the server was closing the persistent connection, as a draining server does."""
        try:
            return self.client.get("/health").json()
        except (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError):
            return self.client.get("/health").json()

    def gauge(self, name: str) -> float:
        return self.health()["processes"]["frontend"]["gauges"][name]

    def call(
        self, body: Any = None, headers: dict[str, str] | None = None, path: str = "/generate", method: str = "POST"
    ) -> Call:
        """Sends a request and returns at once; `take_request` returns once it has been accepted."""
        return Call(self.address, {"prompt": "hi", **(body or {})}, headers or {}, path, method)

    def take(self, kind: type[M]) -> M:
        """Returns the next message for the tokenizer, which must be of type `kind`."""
        message = self._choices.pop(0) if self._choices else self.launcher.take_one(self._requests, TIMEOUT_S)
        assert isinstance(message, kind)
        return message

    def take_request(self) -> TokenizeMsg:
        """Returns the next choice alone; `take` has it with its siblings."""
        first, *siblings = self.take(TokenizeMsg).each()
        self._choices += siblings
        return first

    def ask(self, path: str, body: Any) -> "Asked":
        """Posts `body` in a thread, so that the test can answer as the ring."""
        return Asked(lambda: self.client.post(path, json=body))

    def post_raw(self, path: str, content: bytes | Iterable[bytes], headers: dict[str, str] | None = None) -> Any:
        """Posts `content`, which may not be JSON, with a JSON content type."""
        return self.client.post(path, content=content, headers={**JSON_HEADERS, **(headers or {})})

    def replace(self, name: str, incarnation: int) -> None:
        """Sends tables in which process `name` has died, and then its successor serves."""
        incarnations = {name: incarnation - 1}
        self.show(table_after(incarnations, **{name: "restarting"}))
        assert not self.arrived()
        self.show(table_after({name: incarnation}))

    def take_abort(self) -> AbortMsg:
        message = self.launcher.take_one(self._requests, TIMEOUT_S)
        assert isinstance(message, AbortMsg)
        return message

    def take_drop_before(self) -> DropBefore:
        message = self.launcher.take_one(self._requests, TIMEOUT_S)
        assert isinstance(message, DropBefore)
        return message

    def arrived(self) -> list[TokenizeMsg | AbortMsg | DropBefore]:
        """Returns the messages for the tokenizer that have arrived, without waiting."""
        choices, self._choices = self._choices, []
        return [*choices, *self._requests.receive()]

    def send(self, message: ToFrontend) -> None:
        self.replies.send(message)

    def round_trip(self) -> None:
        """Serves one small request; then all that was sent before has been dispatched."""
        with self.call({"stream": False}) as call:
            self.send(final(self.take_request(), "ok", (1,)))
            assert call.response.status == 200
            call.json()


STAMPS = Stamps(
    received_ns=1_000_000_000,
    tokenized_ns=1_001_000_000,
    queued_ns=1_002_000_000,
    first_scheduled_ns=1_010_000_000,
    first_token_ns=1_050_000_000,
    finished_ns=1_150_000_000,
    detokenized_ns=1_151_000_000,
)
"""1 ms to tokenize, 8 ms queued, 40 ms of prefill, 100 ms of decoding."""
