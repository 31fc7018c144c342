"""Batches: `/v1/files`, `/v1/batches` and `launch.py batch`."""

from runtime.extras import Extra, ExtraCommand

EXTRA = Extra(
    name="batches",
    config="extras.batches.config:BatchConfig",
    frontend="extras.batches.part",
    commands={
        "batch": ExtraCommand("extras.batches.command:add_options", "run a file of requests and exit", num_words=3)
    },
)
