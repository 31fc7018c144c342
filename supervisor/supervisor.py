"""The launcher's loop: boot, watch, replace, drain, stop.

`run` reads as the life of a server; `_turn` is the one place where the launcher waits.
"""

import time
from collections.abc import Callable, Iterable

from messages.channels import Waiter
from messages.config.server import RunConfig
from runtime.extras import load_parts
from supervisor.admin.server import AdminServer
from supervisor.admin.snapshots import Snapshots
from supervisor.child import Command
from supervisor.console import Console
from supervisor.lifecycle import Lifecycle, RunFailedError
from supervisor.process_group import ProcessGroup, Site
from supervisor.shutdown import Shutdown
from supervisor.signals import STOP_SIGNALS
from supervisor.standby import Standby
from supervisor.watch import Watch

TURN_S = 1.0
"""Longest wait of the loop; boot time limits and hangs are checked as often."""

SAME_WISH_S = 0.3
"""Stop signals closer together than this are one: `timeout`, for one, sends its signal twice."""


class Supervisor:
    """One run, from the first process's start to the last one's end."""

    def __init__(self, settings: RunConfig, commands: Iterable[Command], site: Site, console: Console):
        self._settings = settings
        self._site = site
        self._console = console
        self._waiter = Waiter()
        self._waiter.add_descriptor(site.signals.fileno())
        self._group = ProcessGroup(commands, site, self._waiter, settings.hang_timeout_s)
        self._snapshots = Snapshots(site.run_dir, self._group, console)
        self._lifecycle = Lifecycle(settings, self._group, console, self._snapshots.take)
        self._watch = Watch(settings, self._lifecycle, console, self._snapshots.take)
        self._standby = Standby(settings, self._lifecycle)
        self._shutdown = Shutdown(self._lifecycle, console, self)
        self._admin = AdminServer(
            site.run_dir, self._lifecycle, self._shutdown, self._snapshots, settings.drain_timeout_s
        )
        self._waiter.add_channel(self._admin.channel)
        config = site.run_dir.read_config()
        self._parts = [
            module.make_part(config, self._group, self._admin.begin, console)
            for module in load_parts(config, "launcher")
        ]
        self._num_stop_signals = 0
        self._last_stop_signal_s = float("-inf")

    @property
    def is_hurried(self) -> bool:
        return self._num_stop_signals > 1

    def run(self, on_ready: Callable[[], None]) -> int:
        """Starts the processes, calls `on_ready` when all serve, replaces those that die, and stops all on request.

        Returns the exit code: 0 after a stop signal, 130 after a second one, 1 if a process failed for good. Raises
        `RunFailedError` if a shorter context would have had enough memory.
        """
        has_failed = False
        try:
            self._lifecycle.start_all()
            self._group.memory_files.make_weight_memory()
            if self._site.early_scheduler is not None:
                self._site.early_scheduler.end()  # no process used it, as with --external scheduler
            self.turn_until(self._group.is_ready)
            if not self._num_stop_signals:
                self._console.end_progress()
                self._group.record_started()
                on_ready()
                self.turn_until(lambda: self._shutdown.is_requested)
                self._shutdown.drain(self._settings.drain_timeout_s)
        except RunFailedError as failure:
            if failure.fitting_len:
                raise
            has_failed = True
            self._console.end_progress()
            self._console.show(f"\n{failure}", "error")
        finally:
            self._site.listener.close()
            self._admin.fail_open()
            self._snapshots.close()
            self._standby.close()
            self._shutdown.stop()
            self._admin.channel.close()
        return 1 if has_failed else 130 if self.is_hurried else 0

    def turn_until(self, is_over: Callable[[], bool], deadline_s: float = float("inf")) -> None:
        """Turns until `is_over`, until the deadline (`time.monotonic()`), or until another stop signal."""
        num_before = self._num_stop_signals
        while not is_over() and self._num_stop_signals == num_before:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return
            self._turn(left_s)

    def _turn(self, timeout_s: float) -> None:
        """Waits for the next event, then handles all that have arrived."""
        due_in_s = min(self._lifecycle.due_in_s(), self._admin.due_in_s(), self._snapshots.due_in_s())
        readable = self._waiter.wait(min(timeout_s, TURN_S, due_in_s))
        self._count_stop_signals()
        self._lifecycle.follow(readable)
        self._watch.look()
        self._standby.look()
        for part in self._parts:
            part.look()
        self._snapshots.follow()
        self._admin.follow()
        self._group.publish()
        self._console.flush()

    def _count_stop_signals(self) -> None:
        has_come = any(number in STOP_SIGNALS for number in self._site.signals.read())
        now_s = time.monotonic()
        if has_come and now_s - self._last_stop_signal_s > SAME_WISH_S:
            self._num_stop_signals += 1
            self._last_stop_signal_s = now_s
