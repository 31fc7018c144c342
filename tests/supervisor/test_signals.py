import os
import select
import signal

from supervisor.signals import SignalPipe


def test_a_signal_becomes_a_readable_byte_and_the_old_handlers_come_back():
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with SignalPipe() as pipe:
        assert pipe.read() == b""
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        assert select.select([pipe.fileno()], [], [], 5.0)[0]
        assert sorted(pipe.read()) == [signal.SIGINT, signal.SIGTERM]
        assert pipe.read() == b""
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
    assert signal.set_wakeup_fd(-1) == -1


def test_a_hangup_that_is_ignored_stays_ignored():
    old = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with SignalPipe() as pipe:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not select.select([pipe.fileno()], [], [], 0.05)[0]
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, old)
