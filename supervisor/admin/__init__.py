"""What the operator asks of a run, carried out beside the loop of the launcher."""
