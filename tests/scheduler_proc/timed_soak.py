"""A soak with a clock that advances while steps run."""

from tests.scheduler_proc.overlapped import OverlappedBench
from tests.scheduler_proc.soak import Soak


class TimedSoak(Soak):
    """Requests, aborts and the rest come at their own times, as a rule while a step is in flight."""

    bench: OverlappedBench
    seconds_between = 2.6
    """From one request to the next, on average: about what one takes of the device, so that a queue comes and goes."""

    def run(self) -> None:
        chance, device, num_sent, next_s = self.chance, self.bench.device, 0, 0.0
        while num_sent < self.num_requests or self.running():
            while num_sent < self.num_requests and next_s <= device.now_s:
                self.bench.send(self.make(num_sent))
                num_sent += 1
                next_s += chance.expovariate(1 / self.seconds_between)
            if num_sent and chance.random() < 0.1:
                self.disturb()
            if not self.bench.step():
                assert not self.running(), "requests wait and nothing runs"
                device.now_s = max(device.now_s, next_s)
        self.bench.run()
