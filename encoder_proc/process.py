"""The encoder's main loop: images of waiting requests in, rows in the memory of schedulers out.

It starts like any process. Then it encodes at a low priority, so that it takes the cores that the steps of text leave,
and little more.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from encoder_proc.work import Encode, Work
from messages.channels import Receiver
from messages.control.histograms import HistogramCounts
from messages.control.processes import kind_of, place_of, worker_number
from messages.engine_names import SCHEDULER, engine_name
from messages.engines import SchedulerSenders
from messages.ring.encodings import EncodeImage, EncoderStarted, EngineStarted, ForgetImage, OpenAsks
from messages.ring.requests import FramesLost, ToEncoder
from runtime.background import lower_priority_of, native_threads
from runtime.process import ProcessLink, run_process
from scheduler_proc.computing.torch_import import import_torch

PRIORITY = 10
"""For a tenth of a core that steps of text keep busy. With the lowest, 19, an image waits until they are done."""
MAX_IMAGE_S = 900.0
"""An image that takes longer is taken for an endless computation, and the process is replaced."""

LoadEncoder = Callable[[ProcessLink], Encode]
"""Returns the function that encodes images, warmed up. Raises `BootError`. It runs in the thread that encodes."""


def serve(link: ProcessLink, load: LoadEncoder) -> None:
    """Encodes until the process is stopped. Raises `BootError` if the model's tower cannot be loaded."""
    with ThreadPoolExecutor(1, "encode") as executor:
        others = native_threads()
        encode = executor.submit(load, link).result()
        lower_priority_of(native_threads() - others, PRIORITY)
        if not link.stand_by():
            return
        loop = MainLoop(link, encode, executor)
        link.ready(placement=encode.placement)
        while not link.is_stopping:
            loop.turn()
        loop.close()


class MainLoop:
    """Receives what schedulers ask for, and answers."""

    def __init__(self, link: ProcessLink, encode: Encode, executor: ThreadPoolExecutor):
        self._link = link
        self._name = place_of(link.name)
        find_file, work_file = self._rows_file, link.run_dir.work_file(self._name)
        self._work = Work(encode, executor, link.wake, find_file, work_file)
        self._inbox: Receiver[ToEncoder] = Receiver(link.run_dir.socket(link.name), ToEncoder)
        self._to_schedulers = SchedulerSenders(link.open_sender, link.close_sender)
        link.add_receiver(self._inbox)
        suspect = self._work.pop_suspect()
        self._report_start(suspect)

    def turn(self) -> None:
        """Waits for messages or the end of an image, and processes them."""
        link, work = self._link, self._work
        link.wait()
        link.receive_control()
        for message in self._inbox.receive():
            self._receive(message)
        ended = work.turn()
        if ended is not None:
            self._to_schedulers.send(*ended)
        if work.busy_s > MAX_IMAGE_S:
            raise SystemExit(f"an image was not encoded within {MAX_IMAGE_S:.0f} s")
        link.beat(self._gauges, is_busy=work.is_busy, histograms=self._histograms)
        self._to_schedulers.tidy()

    def close(self) -> None:
        self._work.close()
        for channel in (self._inbox, self._to_schedulers):
            channel.close()

    def _receive(self, message: ToEncoder) -> None:
        match message:
            case EncodeImage():
                self._work.add(message)
            case ForgetImage():
                answer = self._work.forget(message)
                if answer is not None:
                    self._to_schedulers.send(message.engine, answer)
            case OpenAsks():
                for answer in self._work.answer_unknown(message):
                    self._to_schedulers.send(message.engine, answer)
            case EngineStarted(engine):
                self._work.forget_engine(engine)
                self._to_schedulers.send(engine, EncoderStarted(self._name))
            case FramesLost():
                self._work.forget_all()
                self._report_start()

    def _report_start(self, suspect: bytes = b"") -> None:
        """Makes all schedulers ask again for what they need."""
        for name in self._link.run_dir.sockets():
            if kind_of(name) == SCHEDULER:
                self._to_schedulers.send(worker_number(name), EncoderStarted(self._name, suspect))

    def _rows_file(self, engine: int) -> Path:
        return self._link.run_dir.rows_file(engine_name(engine))

    def _gauges(self) -> dict[str, float]:
        work = self._work
        return {"waiting": work.num_waiting, "encoded": work.num_encoded, "failed": work.num_failed}

    def _histograms(self) -> dict[str, HistogramCounts]:
        return {"image_seconds": self._work.seconds.counts()}


def load_encoder(link: ProcessLink) -> Encode:
    """Returns the encoder of the model's tower."""
    link.phase("importing torch")
    import_torch()
    # Imported late: it needs torch, and the operator should see the phase first.
    from encoder_proc.image_encoder import open_encoder

    return open_encoder(link.config, link.run_dir.images, link.phase)


def main() -> int:
    return run_process("encoder_proc", partial(serve, load=load_encoder))
