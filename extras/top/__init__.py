"""`launch.py top`: the live page in a terminal."""

from runtime.extras import Extra, ExtraCommand

EXTRA = Extra(
    name="top",
    commands={
        "top": ExtraCommand(
            "extras.top.top:add_options", "watch processes, steps, cache and requests as they change", needs_server=True
        )
    },
)
