"""The name of this program: `sluice` if it is installed, `launch.py` in a checkout."""

import os

PROGRAM = os.environ.get("SLUICE_PROGRAM", "launch.py")
START = "python launch.py" if PROGRAM == "launch.py" else f"{PROGRAM} serve"
"""The command that starts a server; flags may follow."""
