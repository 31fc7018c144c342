import os
import subprocess
import sys

import pytest

from scheduler_proc.computing import OPERATORS_CHOICE, limit_spinning

SHOW = """
import scheduler_proc.offline
"""


@pytest.mark.parametrize("name", OPERATORS_CHOICE)
def test_an_operators_choice_stays(name: str) -> None:
    environment = {name: "17"}
    limit_spinning(environment)
    assert environment == {name: "17"}


def test_torchs_openmp_library_takes_it_also_where_no_one_but_the_engine_imports_torch() -> None:
    environment = {name: value for name, value in os.environ.items() if name not in OPERATORS_CHOICE}
    shown = subprocess.run(
        [sys.executable, "-c", SHOW],
        env=environment | {"OMP_DISPLAY_ENV": "verbose"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    reported = [line for line in shown.stderr.splitlines() if "GOMP_SPINCOUNT" in line]
    if not reported:
        pytest.skip("torch does not use GCC's OpenMP library here")
    assert "'3000'" in reported[0]
