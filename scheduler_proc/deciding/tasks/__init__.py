"""Tasks of a prompt other than sampling its next token."""
