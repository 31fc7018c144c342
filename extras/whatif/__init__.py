"""`launch.py whatif`: the scheduler of this program in a simulation, to answer questions about load and settings."""

from runtime.extras import Extra

EXTRA = Extra(name="whatif", programs={"calibrate": "extras.whatif.calibrate", "whatif": "extras.whatif"})
