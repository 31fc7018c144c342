"""What only a CPU needs to run steps."""
