"""Where the model is: found on disk or fetched from the hub, and what its files say of it."""
