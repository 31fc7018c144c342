"""`launch.py top`: the live page in a terminal."""

from runtime.extras import Extra, ExtraCommand

EXTRA = Extra(
    name="top",
    commands={
        "top": ExtraCommand(
            "extras.top.top:add_options", "show processes, steps, cache and requests live", needs_server=True
        )
    },
)
