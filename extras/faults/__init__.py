"""Fault injection: `launch.py inject`, and how processes carry it out."""

from runtime.extras import Extra, ExtraCommand

EXTRA = Extra(
    name="faults",
    config="extras.faults.config:FaultsConfig",
    process="extras.faults.faults",
    redact="extras.faults.faults:redact_poisons",
    commands={"inject": ExtraCommand("extras.faults.inject:add_options", "inject a fault", needs_server=True)},
)
