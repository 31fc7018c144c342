"""Each command that reads a recording ends with one clear line where that is damaged, and with no traceback."""

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from extras.replay.stand_in import server_flags
from extras.whatif.__main__ import main as whatif
from messages.config.server import Config
from messages.errors import SluiceError
from messages.frame_files import DATA, HEAD, POSITION, RECORD
from supervisor.cli.operate import operate
from tests.extras.whatif.test_recording import record

NUM_DAMAGES = 60
WORDS: tuple[Any, ...] = (None, -1, 0, 10**12, 1.5, True, "", "x", "--api-key", "a\0b", [], {}, ["--port", "1"])


class NoServer:
    """Stands for the server of a replay: its flags are made, and that is all."""

    def __init__(self, config: Config, flags: Any, real: Any, channels: Any):
        server_flags(config, "/tmp/x")
        raise SluiceError("no server")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        record(folder, patch)
    (folder / "poison.json").write_text("[]")
    for file in folder.glob("*.frames"):
        content = file.read_bytes()
        file.write_bytes(content[: DATA + POSITION.unpack_from(content, HEAD)[0]])  # as after an orderly end
    return folder


@pytest.fixture(autouse=True)
def no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("extras.replay.command.StandIn", NoServer)


def commands(whole: Path, damaged: Path) -> Iterator[tuple[str, Callable[[], int]]]:
    for words in (
        ["decode", str(damaged)],
        ["decode", "--redact", str(damaged)],
        ["diff", str(whole), str(damaged)],
        ["replay", str(damaged)],
        ["replay", str(damaged), "--only", "scheduler"],
    ):
        yield words[0], lambda words=words: operate(words)
    yield "whatif", lambda: whatif([str(damaged), "--num-requests", "3"])


@pytest.mark.parametrize("seed", range(NUM_DAMAGES))
def test_damage_is_notified_in_a_line(whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], seed: int):
    damaged = tmp_path / "damaged"
    shutil.copytree(whole, damaged)
    damage(damaged, random.Random(seed))
    for command, run in commands(whole, damaged):
        code = run()
        errors = [
            line for line in capsys.readouterr().err.splitlines() if not line.startswith(("note: ", "replaying "))
        ]
        assert code in (0, 1, 2)
        assert len(errors) <= 1
        assert all(line.startswith(f"launch.py {command}: ") for line in errors)
        assert errors or code != 2, "it says why"


def test_a_whole_one_is_read(whole: Path):
    codes = [run() for _, run in commands(whole, whole)]
    assert codes == [0, 0, 0, 2, 1, 0], "its frontend has sent nothing, and there is no server"


def damage(folder: Path, rng: random.Random) -> None:
    """Does one of the things to one of the files that disks, copies and people do."""
    file = rng.choice(sorted(folder.iterdir()))
    content = bytearray(file.read_bytes())
    place = rng.randrange(len(content))
    match rng.choice(["flip", "flip", "noise", "zeros", "cut", "gone", "folder", "header", "manifest", "manifest"]):
        case "flip":
            content[place] ^= 1 << rng.randrange(8)
            file.write_bytes(content)
        case "noise":
            for _ in range(100):
                content[rng.randrange(len(content))] = rng.randrange(256)
            file.write_bytes(content)
        case "zeros":
            file.write_bytes(content[:place] + bytes(300) + content[place + 300 :])
        case "cut":
            file.write_bytes(content[:place])
        case "gone":
            file.unlink()
        case "folder":
            file.unlink()
            file.mkdir()
        case "header":
            file = rng.choice(sorted(folder.glob("*.frames")))
            content = bytearray(file.read_bytes())
            content[rng.randrange(DATA + RECORD.size)] = rng.choice([0, 1, 255])
            file.write_bytes(content)
        case _:
            file = folder / "manifest.json"
            manifest = json.loads(file.read_bytes())
            holder, key = rng.choice(list(places(manifest)))
            holder[key] = rng.choice(WORDS)
            file.write_text(json.dumps(manifest))


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yields the list or object around each value, and its place there."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from places(value[key])


@pytest.mark.parametrize("name", ["manifest.json", "poison.json", "scheduler.1.frames"])
def test_what_is_cut_off_is_named(whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str):
    damaged = tmp_path / "damaged"
    shutil.copytree(whole, damaged)
    file = damaged / name
    file.write_bytes(file.read_bytes()[:-1])
    assert operate(["replay", str(damaged), "--only", "scheduler"]) == 2
    assert f"launch.py replay: {file} is damaged" in capsys.readouterr().err
