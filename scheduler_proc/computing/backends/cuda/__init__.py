"""What only a GPU needs to run steps."""
