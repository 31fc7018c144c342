"""A launcher of fake processes: `fake_launch.py SETTINGS_JSON`; the settings are those of `FakeRun`."""

import json
import sys
import time
from pathlib import Path

from messages.config import Config, HttpConfig, ModelFacts, RunConfig
from messages.errors import BootError, UsageError
from supervisor.child import Command
from supervisor.console import Console
from supervisor.run import serve

FAKE_CHILD = Path(__file__).with_name("fake_child.py")


def main() -> int:
    settings = json.loads(sys.argv[1])
    facts = ModelFacts(
        model_dir="/nowhere", tokenizer_dir="/nowhere", served_names=("fake",), vocab_size=8, max_model_len=16
    )
    config = Config(http=HttpConfig(port=0), run=RunConfig(**settings["run"]), facts=facts)
    commands = [
        Command(name, (sys.executable, str(FAKE_CHILD), name, behaviour), name in settings["run"].get("external", ()))
        for name, behaviour in settings["behaviours"].items()
    ]
    console = Console()
    try:
        return serve(config, commands, console, time.monotonic())
    except (UsageError, BootError) as error:
        console.say(str(error))
        return 2
    finally:
        console.close()


if __name__ == "__main__":
    raise SystemExit(main())
