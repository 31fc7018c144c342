"""Random good, bad and cut-off clients at once; afterwards the frontend is alive and nothing has leaked."""

import random
import socket
from collections.abc import Iterator

import pytest

from messages.ring.requests import AbortMsg, TokenizeMsg
from tests.frontend.frontend_run import Call, FrontendRun, final, make_config, step, wait_until

NUM_TURNS = 250
MAX_CALLS = 40
CUT_OFF = [
    b"",
    b"POST /gen",
    b"POST /generate HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n{",
    b"POST /generate HTTP/1.1\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{",
    b"\x00\xff\r\n\r\n",
]
BAD = [b"{", b"[]", b'{"prompt": 5}', b'{"prompt": "a", "max_tokens": 0}', b"\xff"]


class Row:
    """A request in the ring that the test plays: it yields the tokens 0, 1, 2, … until it ends."""

    def __init__(self, message: TokenizeMsg):
        self.message = message
        self.num_tokens = 0
        self.is_aborted = False


class Chaos:
    def __init__(self, run: FrontendRun, seed: int):
        self.run = run
        self.random = random.Random(seed)
        self.rows: dict[int, Row] = {}
        self.num_tokens: dict[int, int] = {}
        """The tokens of each request that ended by itself."""
        self.calls: list[Call] = []

    def act(self) -> None:
        """One random action of a client."""
        match self.random.choice(["stream", "stream", "whole", "bad", "cut", "leave", "abort"]):
            case "stream" | "whole" as kind if len(self.calls) < MAX_CALLS:
                self.calls.append(self.run.call({"stream": kind == "stream"}))
                wait_until(self.take_arrived)
            case "bad":
                assert self.run.post_raw("/generate", self.random.choice(BAD)).status_code == 400
            case "cut":
                with socket.create_connection(self.run.address) as client:
                    client.sendall(self.random.choice(CUT_OFF))
            case "leave" if self.calls:
                self.calls.pop(self.random.randrange(len(self.calls))).leave()
            case "abort" if self.rows:
                uid = self.random.choice(list(self.rows))
                assert self.run.client.post("/abort_request", json={"uid": uid}).json()["aborted"] in ([uid], [])
            case _:
                pass

    def take_arrived(self) -> bool:
        """Takes requests and aborts into the ring; True if there was a request."""
        arrived = self.run.arrived()
        for message in arrived:
            match message:
                case TokenizeMsg():
                    self.rows[message.uid] = Row(message)
                case AbortMsg(uid) if uid in self.rows:
                    self.rows[uid].is_aborted = True
                case _:
                    pass
        return any(isinstance(message, TokenizeMsg) for message in arrived)

    def turn(self, end_chance: float) -> None:
        """The ring makes one step."""
        self.take_arrived()
        finals = tuple(self._end(end_chance))
        going = [(row.message, row.num_tokens, f"{row.num_tokens} ") for row in self.rows.values()]
        for row in self.rows.values():
            row.num_tokens += 1
        self.run.send(step(going, finals))

    def _end(self, chance: float) -> Iterator[object]:
        for uid, row in list(self.rows.items()):
            if row.is_aborted or self.random.random() < chance:
                del self.rows[uid]
                self.num_tokens[uid] = row.num_tokens
                yield final(row.message, finish_reason="abort" if row.is_aborted else "length")

    def check(self, call: Call) -> int:
        """The reply must be whole; returns its uid."""
        is_stream = call.response.headers["content-type"].startswith("text/event-stream")
        events = call.events() if is_stream else [call.json()]
        uid = events[0]["uid"]
        token_ids = [token_id for event in events for token_id in event["token_ids"]]
        assert token_ids == list(range(self.num_tokens[uid]))
        assert "".join(event["text"] for event in events) == "".join(f"{token_id} " for token_id in token_ids)
        assert [event["finish_reason"] is not None for event in events] == [False] * (len(events) - 1) + [True]
        return uid


@pytest.mark.parametrize("seed", [1, 2])
def test_every_client_gets_its_whole_reply_and_nothing_is_left(seed: int):
    with FrontendRun(make_config()) as run:
        chaos = Chaos(run, seed)
        for _ in range(NUM_TURNS):
            chaos.act()
            chaos.turn(end_chance=0.03)

        def is_over() -> bool:
            chaos.turn(end_chance=1.0)
            return run.gauge("requests") == 0 and not chaos.rows

        wait_until(is_over)
        uids = [chaos.check(call) for call in chaos.calls]
        assert len(set(uids)) == len(uids) > 5
        for call in chaos.calls:
            call.leave()
        wait_until(lambda: run.gauge("connections") == 1)
        assert run.gauge("streams") == 0
        log = run.launcher.log_text("frontend")
        assert "Traceback" not in log
        assert "ERROR" not in log
        # An abort of a request that had just ended may still be on its way, and come before the next request.
        with run.call({"stream": False}) as last:
            wait_until(chaos.take_arrived)
            wait_until(is_over)
            chaos.check(last)
