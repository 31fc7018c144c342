"""The command `sluice`, which is `launch.py` of the installed program."""

import os
import sys
from pathlib import Path

INSTALLED = Path(__file__).with_name("app")
ROOT = INSTALLED if INSTALLED.is_dir() else Path(__file__).resolve().parents[1]
"""The folder of `launch.py`: with an editable installation the checkout."""


def main() -> int:
    sys.path.insert(0, str(ROOT))
    os.environ["SLUICE_PROGRAM"] = Path(sys.argv[0]).name
    # Imported here: only now it can be found.
    from launch import main as launch

    return launch()
