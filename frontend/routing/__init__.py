"""Which engine a request goes to, where there are several (`--data-parallel`)."""
