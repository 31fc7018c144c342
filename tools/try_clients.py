"""Runs client frameworks against a server that runs, and prints a line for each.

    python -m tools.try_clients                  # all of them
    python -m tools.try_clients langchain openai --url http://127.0.0.1:8000 --model NAME

Each client is installed from PyPI or npm into a folder of its own below `--folder`, in its newest version, and kept
there (`--renew` installs it again). It then makes the steps of `tools/clients/with_NAME`: a chat, a stream, a call of a
tool with its result, an answer of a schema, embeddings. Answers of small models are not judged.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

SCRIPTS = Path(__file__).parent / "clients"
TIMEOUT_S = 600.0
INSTALL_TIMEOUT_S = 900.0
VERSION = "import importlib.metadata, sys; print(importlib.metadata.version(sys.argv[1]))"


class Client(NamedTuple):
    """The packages to install, first the one whose version is shown."""

    packages: Sequence[str]
    is_npm: bool = False


CLIENTS = {
    "openai": Client(["openai"]),
    "anthropic": Client(["anthropic"]),
    "ollama": Client(["ollama"]),
    "langchain": Client(["langchain-openai"]),
    "llama_index": Client(["llama-index-llms-openai-like", "llama-index-embeddings-openai-like"]),
    "pydantic_ai": Client(["pydantic-ai-slim", "openai", "tiktoken"]),
    "instructor": Client(["instructor"]),
    "litellm": Client(["litellm"]),
    "haystack": Client(["haystack-ai"]),
    "cohere": Client(["cohere"]),
    "ai_sdk": Client(["ai", "@ai-sdk/openai-compatible", "zod"], is_npm=True),
    "genkit": Client(["genkitx-ollama", "genkit"], is_npm=True),
}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Runs client frameworks against a server that runs.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(CLIENTS)}; default: all")
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="of the server")
    parser.add_argument("--model", default="", help="a name in /v1/models; default: the first")
    parser.add_argument("--folder", type=Path, default=Path.home() / ".cache" / "sluice-clients")
    parser.add_argument("--renew", action="store_true", help="install the newest versions again")
    provided = parser.parse_args(arguments)
    if unknown := [name for name in provided.names if name not in CLIENTS]:
        parser.error(f"{unknown[0]} is not one of {', '.join(CLIENTS)}")
    model = provided.model or first_model(provided.url)
    num_failed = 0
    for name in provided.names or CLIENTS:
        folder = provided.folder / name
        if provided.renew:
            shutil.rmtree(folder, ignore_errors=True)
        line, is_good = try_client(name, folder, provided.url, model)
        print(line, flush=True)
        num_failed += not is_good
    return min(num_failed, 1)


def first_model(url: str) -> str:
    with urllib.request.urlopen(f"{url}/v1/models") as reply:
        return json.load(reply)["data"][0]["id"]


def try_client(name: str, folder: Path, url: str, model: str) -> tuple[str, bool]:
    """Returns the line about a client, and whether all of its steps work."""
    client = CLIENTS[name]
    try:
        command, version = (_install_npm if client.is_npm else _install_python)(name, folder, client.packages)
        outcomes = _run(command, folder, url, model)
    except (subprocess.SubprocessError, OSError) as error:
        words = getattr(error, "stderr", None) or str(error)
        return f"{name}: cannot be tried: {words.strip()[-300:]}", False
    failed = {each["step"]: each["detail"] for each in outcomes if each["outcome"] == "fails"}
    good = [
        each["step"] + (f" ({each['detail']})" if each["detail"] else "")
        for each in outcomes
        if each["outcome"] == "works"
    ]
    line = f"{client.packages[0]} {version}: {', '.join(good) or 'nothing'} {'works' if len(good) == 1 else 'work'}"
    words = [f"{step} fails: {' '.join(detail.split())[:300]}" for step, detail in failed.items()]
    return "; ".join([line, *words]), not failed and bool(good)


def _install_python(name: str, folder: Path, packages: Sequence[str]) -> tuple[list[str], str]:
    """Returns the command that makes the steps, and the version."""
    python = folder / "bin" / "python"
    marker = folder / "installed"
    if not marker.exists():
        _call([sys.executable, "-m", "venv", "--clear", str(folder)])
        _call([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages])
        marker.touch()
    version = _call([str(python), "-c", VERSION, packages[0]]).strip()
    return [str(python), str(SCRIPTS / "steps.py"), name], version


def _install_npm(name: str, folder: Path, packages: Sequence[str]) -> tuple[list[str], str]:
    """Returns the same; scripts must lie where their packages are."""
    marker = folder / "installed"
    if not marker.exists():
        folder.mkdir(parents=True, exist_ok=True)
        _call(["npm", "install", "--silent", "--no-fund", "--no-audit", "--prefix", str(folder), *packages])
        marker.touch()
    for script in ("run.mjs", "steps.mjs", f"with_{name}.mjs"):
        shutil.copy(SCRIPTS / script, folder / script)
    version = json.loads((folder / "node_modules" / packages[0] / "package.json").read_text())["version"]
    return ["node", str(folder / "run.mjs"), str(folder / f"with_{name}.mjs")], version


def _run(command: list[str], folder: Path, url: str, model: str) -> list[dict[str, str]]:
    """Returns the outcome of each step."""
    environment = {**os.environ, "CLIENT_URL": url.rstrip("/"), "CLIENT_MODEL": model, "PYTHONPATH": ""}
    printed = _call(command, timeout_s=TIMEOUT_S, folder=folder, environment=environment)
    return [json.loads(line) for line in printed.splitlines() if line.startswith('{"step"')]


def _call(
    command: list[str],
    timeout_s: float = INSTALL_TIMEOUT_S,
    folder: Path | None = None,
    environment: dict[str, str] | None = None,
) -> str:
    """Returns what a program prints. Raises `SubprocessError`."""
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=timeout_s, check=True, cwd=folder, env=environment
    )
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
