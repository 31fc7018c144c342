"""Other servers, made measurable: each file runs in an environment of its own."""
