"""The Python snippets of the README and of docs/ run as they are."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.model.lookup import CHAT_MODEL
from tests.ring.conftest import Start

pytestmark = pytest.mark.ring

ROOT = Path(__file__).resolve().parents[2]
ADDRESS = "http://localhost:8000"


def snippet_of(page: str) -> str:
    """Returns the only snippet of Python on a page."""
    (code,) = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return code


@pytest.mark.skipif(not CHAT_MODEL.is_file(), reason=f"{CHAT_MODEL} was not fetched")
@pytest.mark.parametrize("page", ["README.md", "docs/start/clients.md"])
def test_the_client_of_openai_in_five_lines(start_ring: Start, page: str, capsys: pytest.CaptureFixture[str]):
    """The first question to the model that `make serve` serves has a right answer."""
    code = snippet_of(page)
    assert ADDRESS in code
    assert sum(bool(line) for line in code.splitlines()) == 5
    names: dict[str, object] = {}
    exec(code.replace(ADDRESS, start_ring(CHAT_MODEL).url) + "client.close()\n", names)
    assert capsys.readouterr().out == "The capital of France is Paris.\n"


def test_the_engine_without_a_server():
    flags = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = ["env", *(f"{name}={value}" for name, value in flags.items()), sys.executable, "-c"]
    code = snippet_of("docs/use/offline.md")
    done = subprocess.run([*command, code], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"\d+", done.stdout)) == 16
