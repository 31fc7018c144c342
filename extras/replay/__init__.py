"""Replaying a recording: recorded requests go through a new server, and what it gives is compared (decision 0050)."""
