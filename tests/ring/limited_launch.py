"""A launcher whose processes get into control groups as they start: `limited_launch.py GROUPS_JSON FLAG …`."""

import json
import sys
from pathlib import Path

from supervisor.child import Child
from supervisor.early_scheduler import EarlyScheduler
from supervisor.run import launch


def main() -> int:
    groups: dict[str, str] = json.loads(sys.argv[1])
    spawn = Child.spawn

    def spawn_in_group(self: Child, run_path: Path, listen_fd: int | None, early: EarlyScheduler | None = None) -> None:
        spawn(self, run_path, listen_fd, early)
        if self.name in groups:
            (Path(groups[self.name]) / "cgroup.procs").write_text(f"{self.pid}", encoding="ascii")

    Child.spawn = spawn_in_group
    return launch(sys.argv[2:])


if __name__ == "__main__":
    raise SystemExit(main())
