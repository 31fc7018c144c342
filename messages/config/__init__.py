"""The configuration of a run, one file a section."""
