"""`/live` and the page that shows it: the server as it runs."""

from runtime.extras import Extra

EXTRA = Extra(name="live", frontend="extras.live.part")
