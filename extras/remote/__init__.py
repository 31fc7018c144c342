"""Engines on other machines (`launch.py join`, Ray), and engines that come and go with the load."""

from runtime.extras import Extra

EXTRA = Extra(
    name="remote",
    config="extras.remote.config:RemoteConfig",
    launcher="extras.remote.head",
    programs={"join": "extras.remote.join"},
)
