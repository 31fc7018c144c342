"""The command `fit`: whether a model fits into the memory of this machine, by the server's own counts."""

from runtime.extras import Extra

EXTRA = Extra(name="fit", programs={"fit": "extras.fit.command"})
