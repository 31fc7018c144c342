"""A launcher of fake processes: `fake_launch.py SETTINGS_JSON`; the settings are those of `FakeRun`."""

import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import zmq

from messages.config.server import Config, HttpConfig, ModelFacts, RunConfig
from messages.errors import BootError, UsageError
from supervisor import child
from supervisor.child import Command
from supervisor.console import Console
from supervisor.run import serve
from tests.forked import become
from tests.supervisor import fake_child

NUM_DESCRIPTORS = os.sysconf("SC_OPEN_MAX")


class ForkedChild(subprocess.Popen[bytes]):
    """A fake process that runs in a fork of the launcher; starting a new Python would take far longer."""

    def __init__(self, words: Sequence[str], *, env: Mapping[str, str], pass_fds: Sequence[int], **rest: Any):
        def run() -> None:
            leave_the_launcher()
            become(list(words[2:]), env)
            close_descriptors(pass_fds)
            code = 1
            try:
                code = fake_child.main()
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                zmq.Context.instance().destroy()  # what is sent last leaves, as at the end of a new process
                os._exit(code)

        super().__init__(words, env=env, pass_fds=pass_fds, preexec_fn=run, **rest)


def leave_the_launcher() -> None:
    """Handles signals as a new process does."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)


def close_descriptors(kept: Sequence[int]) -> None:
    """Closes the launcher's lifeline, lock and sockets; then notifies the launcher that its process has started."""
    for below, above in pairwise([2, *sorted(kept), NUM_DESCRIPTORS]):
        os.closerange(below + 1, above)


def main() -> int:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # `nohup make test` has it ignored
    settings = json.loads(sys.argv[1])
    facts = ModelFacts(
        model_dir="/nowhere", tokenizer_dir="/nowhere", served_names=("fake",), vocab_size=8, max_model_len=16
    )
    config = Config(http=HttpConfig(port=0), run=RunConfig(**settings["run"]), facts=facts)
    commands = [
        Command(
            name,
            (sys.executable, fake_child.__file__, name, behaviour),
            name in settings["run"].get("external", ()),
            is_remote=behaviour == "lose_a_machine",
        )
        for name, behaviour in settings["behaviours"].items()
    ]
    child.subprocess = SimpleNamespace(**{**vars(subprocess), "Popen": ForkedChild})
    console = Console()
    try:
        return serve(config, commands, console, time.monotonic())
    except (UsageError, BootError) as error:
        console.show(str(error))
        return 2
    finally:
        console.close()


if __name__ == "__main__":
    raise SystemExit(main())
