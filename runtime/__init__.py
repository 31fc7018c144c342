"""What every process runs in: its link to the launcher, its lifeline, the run directory, profiles and the list of extras."""
