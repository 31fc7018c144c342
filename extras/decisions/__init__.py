"""`POST /v1/decisions`: typed questions about one input, answered with probabilities."""

from runtime.extras import Extra

EXTRA = Extra(name="decisions", frontend="extras.decisions.part")
