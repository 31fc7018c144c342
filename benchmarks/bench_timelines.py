"""What timelines cost for each request and each step, by the process that pays it.

    python -m benchmarks.bench_timelines --json FILE

Times are the least of many repetitions in one process, so that a busy machine hardly changes them: encoding and
decoding of the messages that are only sent for timelines, and what is done with them. Sockets are left out.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.result_file import write_result
from frontend.requests.generation import Generation
from frontend.requests.timelines import Timelines
from frontend.requests.timing import server_timing
from messages.columns import pack_int32
from messages.ring.replies import ToDetokenizer, ToFrontend, Usage, UserReply
from messages.ring.requests import SamplingParams, Stamps, TokenizeMsg, UserMsg
from messages.ring.timeline import ScheduleReport, Tokenized, TokenizedRow
from scheduler_proc.deciding.pages.block_allocator import BlockAllocator
from scheduler_proc.deciding.plan_notes import PlanNotes
from scheduler_proc.deciding.policy import Budget
from scheduler_proc.deciding.requests import Limits
from scheduler_proc.deciding.scheduler import Scheduler

REPEATS = 200
NUM_WAITING = 1024


class TimelineCost(msgspec.Struct, frozen=True):
    """Microseconds. A report is sent for a step with a prompt chunk, and once a second while requests wait."""

    per_request_us: dict[str, float]
    per_report_us: dict[str, float]
    per_decode_step_us: dict[str, float]
    report_of_1024_waiting_us: dict[str, float]


def least_us(run: Callable[[], object], count: int = 20) -> float:
    """Returns the least time of one call, in microseconds, over many repetitions of `count` calls."""
    best_s = float("inf")
    for _ in range(REPEATS):
        begin_s = time.perf_counter()
        for _ in range(count):
            run()
        best_s = min(best_s, time.perf_counter() - begin_s)
    return round(1e6 * best_s / count, 2)


def user_msg(uid: int, num_tokens: int = 100) -> UserMsg:
    return UserMsg(uid, 0, pack_int32([uid % 50] * num_tokens), SamplingParams(max_tokens=50), Stamps(received_ns=uid))


def make_scheduler(num_requests: int) -> Scheduler:
    scheduler = Scheduler(BlockAllocator(20_000, 16), Limits(1024, 1000), Budget(1, 8192))
    for uid in range(1, num_requests + 1):
        scheduler.receive(user_msg(uid))
    return scheduler


def report_of(scheduler: Scheduler) -> ScheduleReport:
    assert scheduler.schedule() is not None
    return next(reply for reply in scheduler.pop_replies() if isinstance(reply, ScheduleReport))


class Served:
    """A frontend's side of one request, from its admission to the end of its response."""

    def __init__(self) -> None:
        self.open: dict[int, Generation] = {}
        self.timelines = Timelines(self.open.get)
        self.report = report_of(make_scheduler(1))
        self.tokenized = Tokenized((TokenizedRow(1, 0, 2, 3, 100),))
        now_ns = time.monotonic_ns()
        stamps = Stamps(1, 3, 4, 5, 6, now_ns, now_ns, 2)
        self.final = UserReply(1, 0, "stop", usage=Usage(100, 0, 50), stamps=stamps)

    def serve(self) -> Generation:
        """All that is done for a timeline, and the making of the entry itself."""
        generation = self.enter()
        timeline = generation.timeline
        self.timelines.open(generation, "/generate")
        timeline.send(2)
        self.timelines.note_tokenized(self.tokenized)
        self.timelines.note_schedule(self.report)
        timeline.begin_decoding(6, self.final.usage)
        timeline.finish(self.final, time.monotonic_ns())
        generation.final = self.final
        self.timelines.close(generation)
        return generation

    def enter(self) -> Generation:
        message = TokenizeMsg(1, 0, "x", b"", SamplingParams(max_tokens=50), Stamps(received_ns=1))
        self.open[1] = generation = Generation(message, "id")
        return generation


def codec_us(message: Any, union: Any) -> tuple[float, float]:
    """Returns the times to encode and to decode a message."""
    encoder, decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(union)
    frame = encoder.encode(message)
    return least_us(lambda: encoder.encode(message)), least_us(lambda: decoder.decode(frame))


def measure() -> TimelineCost:
    served = Served()
    tokenized_encode, tokenized_decode = codec_us(served.tokenized, ToFrontend)
    report_encode, report_decode = codec_us(served.report, ToDetokenizer)
    long = report_of(make_scheduler(NUM_WAITING + 1))
    long_encode, long_decode = codec_us(long, ToDetokenizer)
    scheduler = make_scheduler(1)
    assert scheduler.schedule() is not None
    reports = scheduler._reports  # pyright: ignore[reportPrivateUsage]
    generation = served.serve()
    busy = make_scheduler(NUM_WAITING + 1)
    assert busy.schedule() is not None
    busy_reports = busy._reports  # pyright: ignore[reportPrivateUsage]

    def make_long() -> None:
        busy_reports._told_all_ns = 0  # pyright: ignore[reportPrivateUsage]
        assert busy_reports.make(1, []) is not None

    return TimelineCost(
        per_request_us={
            "tokenizer": tokenized_encode,
            "frontend": round(least_us(served.serve) - least_us(served.enter) + tokenized_decode, 2),
            "frontend, Server-Timing of a whole reply": least_us(lambda: server_timing([generation])),
        },
        per_report_us={
            "scheduler": report_encode,
            "detokenizer": round(report_encode + report_decode, 2),
            "frontend": report_decode,
        },
        per_decode_step_us={"scheduler": round(least_us(PlanNotes) + least_us(lambda: reports.make(1, [])), 2)},
        report_of_1024_waiting_us={
            "scheduler": round(least_us(make_long, 1) + long_encode, 1),
            "detokenizer": round(long_encode + long_decode, 1),
            "frontend": round(long_decode, 1),
        },
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result to FILE")
    options = parser.parse_args(arguments)
    cost = measure()
    print(msgspec.json.format(msgspec.json.encode(cost)).decode())
    if options.json:
        write_result(options.json, "timelines", cost)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
