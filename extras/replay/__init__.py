"""Recorded frames as people read them, and recorded requests sent through a new server."""

from runtime.extras import Extra, ExtraCommand

EXTRA = Extra(
    name="replay",
    commands={
        "tail": ExtraCommand(
            "extras.replay.frames:add_tail_options", "show frames between the processes as they come", needs_server=True
        ),
        "decode": ExtraCommand("extras.replay.frames:add_decode_options", "show recorded frames as JSON lines"),
        "diff": ExtraCommand(
            "extras.replay.frames:add_diff_options", "show the first frame that differs between two recordings"
        ),
        "replay": ExtraCommand(
            "extras.replay.command:add_options", "send recorded requests through a new server and compare what comes"
        ),
    },
)
