"""What every process runs in: its launcher link, its lifeline, the run directory, profiles and the list of extras."""
