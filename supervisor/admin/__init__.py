"""What the operator asks of a run, carried out without blocking the launcher's loop."""
