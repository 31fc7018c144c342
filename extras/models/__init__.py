"""Several models behind one address: a router takes the requests, and each model is a server of its own."""

from runtime.extras import Extra

EXTRA = Extra(
    name="models",
    config="extras.models.config:ModelsConfig",
    arguments="extras.models.config:name_models",
    server="extras.models.server",
)
