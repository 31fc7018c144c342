"""Fault injection: `launch.py inject`, and what processes do about it."""
