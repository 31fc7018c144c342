"""The Python snippets of the README and of docs/ run as they are."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ring.client import BARD, BARD_DIR, RingClient

pytestmark = pytest.mark.ring

ROOT = Path(__file__).resolve().parents[2]
ADDRESS = "http://localhost:8000"


def snippet_of(page: str) -> str:
    """Returns the only snippet of Python on a page."""
    (code,) = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return code


@pytest.mark.parametrize("page", ["README.md", "docs/start/clients.md"])
def test_the_client_of_openai_in_four_lines(bard_ring: RingClient, page: str, capsys: pytest.CaptureFixture[str]):
    code = snippet_of(page)
    assert ADDRESS in code
    assert BARD_DIR.name in code
    assert sum(bool(line) for line in code.splitlines()) == 4
    names: dict[str, object] = {}
    exec(code.replace(ADDRESS, bard_ring.url).replace(BARD_DIR.name, BARD) + "client.close()\n", names)
    assert len(capsys.readouterr().out.split()) > 5


def test_the_engine_without_a_server():
    flags = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = ["env", *(f"{name}={value}" for name, value in flags.items()), sys.executable, "-c"]
    code = snippet_of("docs/use/offline.md")
    done = subprocess.run([*command, code], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"\d+", done.stdout)) == 16
