"""A launcher whose processes get into control groups as they start: `limited_launch.py GROUPS_JSON FLAG …`."""

import json
import sys
from pathlib import Path
from typing import Any

from supervisor.child import Child
from supervisor.run import launch


def main() -> int:
    groups: dict[str, str] = json.loads(sys.argv[1])
    spawn = Child.spawn

    def spawn_in_group(child: Child, *arguments: Any) -> None:
        spawn(child, *arguments)
        if child.name in groups:
            (Path(groups[child.name]) / "cgroup.procs").write_text(f"{child.pid}", encoding="ascii")

    Child.spawn = spawn_in_group
    return launch(sys.argv[2:])


if __name__ == "__main__":
    raise SystemExit(main())
