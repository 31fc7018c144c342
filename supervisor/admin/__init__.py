"""The operator's commands for a run, carried out without blocking the launcher's loop."""
