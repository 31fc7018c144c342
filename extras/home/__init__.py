"""Commands for people who run models themselves: `run` (a chat), `models` (what is on disk), `agents`."""

from runtime.extras import Extra

EXTRA = Extra(
    name="home",
    programs={"run": "extras.home.run", "models": "extras.home.models", "agents": "extras.home.agents"},
)
