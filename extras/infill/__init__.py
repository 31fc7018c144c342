"""`POST /infill`: llama.cpp's endpoint for code completion in editors."""

from runtime.extras import Extra

EXTRA = Extra(name="infill", frontend="extras.infill.part")
