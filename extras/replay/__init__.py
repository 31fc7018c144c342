"""Recorded frames as people read them, and recorded requests sent through a new server."""

from runtime.extras import Extra, ExtraCommand

EXTRA = Extra(
    name="replay",
    commands={
        "tail": ExtraCommand(
            "extras.replay.frames:add_tail_options",
            "print the frames between processes as they are sent",
            needs_server=True,
        ),
        "decode": ExtraCommand("extras.replay.frames:add_decode_options", "print recorded frames as JSON lines"),
        "diff": ExtraCommand(
            "extras.replay.frames:add_diff_options", "print the first difference between two recordings"
        ),
        "replay": ExtraCommand(
            "extras.replay.command:add_options", "replay recorded requests on a new server and compare the results"
        ),
    },
)
